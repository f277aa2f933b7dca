"""All attacks: on runs, commands and readers, each in many random tries that can be repeated one by one."""

from torture import (
    archives,
    configs,
    damages,
    disks,
    documents,
    endless,
    environments,
    exports,
    folders,
    hubs,
    images,
    kills,
    links,
    moves,
    options,
    pickles,
    ranks,
    reports,
    rivals,
    servers,
    signals,
    texts,
)
from torture.attack import Attack

ATTACKS = {
    attack.name: attack
    for attack in (
        Attack(name="kills", attempt=kills.attempt, num_tries=100, num_quick=1),
        Attack(name="power-cuts", attempt=kills.attempt_power, num_tries=40, num_quick=1),
        Attack(name="signals", attempt=signals.attempt_run, num_tries=80, num_quick=2),
        Attack(name="storms", attempt=signals.attempt_storm, num_tries=15, num_quick=0),
        Attack(name="moves", attempt=moves.attempt, num_tries=60, num_quick=3),
        Attack(name="rivals", attempt=rivals.attempt, num_tries=20, num_quick=1),
        Attack(name="texts", attempt=texts.attempt, num_tries=60, num_quick=3),
        Attack(name="early-signals", attempt=signals.attempt_start, num_tries=40, num_quick=0),
        Attack(name="full-disks", attempt=disks.attempt, num_tries=80, num_quick=1),
        Attack(name="damages", attempt=damages.attempt, num_tries=250, num_quick=2),
        Attack(name="config-digits", attempt=configs.attempt_digit, num_tries=120, num_quick=2),
        Attack(name="config-trees", attempt=configs.attempt_tree, num_tries=200, num_quick=5),
        Attack(name="options", attempt=options.attempt_parser, num_tries=500, num_quick=3),
        Attack(name="option-runs", attempt=options.attempt_run, num_tries=150, num_quick=3),
        Attack(name="cifar-pickles", attempt=pickles.attempt_cifar, num_tries=300, num_quick=4),
        Attack(name="checkpoint-pickles", attempt=pickles.attempt_checkpoint, num_tries=100, num_quick=2),
        Attack(name="official-pickles", attempt=pickles.attempt_official, num_tries=100, num_quick=3),
        Attack(name="archives", attempt=archives.attempt, num_tries=150, num_quick=6),
        Attack(name="images", attempt=images.attempt, num_tries=250, num_quick=6),
        Attack(name="servers", attempt=servers.attempt, num_tries=150, num_quick=5),
        Attack(name="hubs", attempt=hubs.attempt, num_tries=40, num_quick=2),
        Attack(name="folders", attempt=folders.attempt, num_tries=200, num_quick=5),
        Attack(name="documents", attempt=documents.attempt, num_tries=100, num_quick=2),
        Attack(name="exports", attempt=exports.attempt, num_tries=15, num_quick=0),
        Attack(name="reports", attempt=reports.attempt, num_tries=40, num_quick=2),
        Attack(name="endless", attempt=endless.attempt, num_tries=150, num_quick=3),
        Attack(name="links", attempt=links.attempt, num_tries=120, num_quick=3),
        Attack(name="permissions", attempt=environments.attempt_permission, num_tries=60, num_quick=2),
        Attack(name="environments", attempt=environments.attempt_setting, num_tries=60, num_quick=0),
        Attack(name="odd-ranks", attempt=ranks.attempt_odd, num_tries=40, num_quick=2),
        Attack(name="lost-ranks", attempt=ranks.attempt_pair, num_tries=10, num_quick=0),
    )
}
"""By their names. The quick tries show that an attack works, and take a minute or two together; those that need
interpreters of their own have none, as each takes seconds to start."""
