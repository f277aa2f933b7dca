"""Checks of arguments and fields, whose errors name the argument and say what it must be."""

from ._internal.validation import (
    check_choice as check_choice,
)
from ._internal.validation import (
    check_count as check_count,
)
from ._internal.validation import (
    check_dropout as check_dropout,
)
from ._internal.validation import (
    check_not_negative as check_not_negative,
)
from ._internal.validation import (
    check_positive as check_positive,
)
from ._internal.validation import (
    suggestion as suggestion,
)
