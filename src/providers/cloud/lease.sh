#!/bin/sh
# A machine's dead-man lease: the machine ends itself when nobody has renewed the lease for a while.
#
#   sh lease.sh arm LEASE_S GRACE_S LIFETIME_S               starts the watch, apart from its caller
#   sh lease.sh watch LEASE_S GRACE_S LIFETIME_S ARMED_AT    the watch; ARMED_AT is an uptime
#
# The lease is the file "lease" beside this script, and whoever touches it renews. The machine is powered off LEASE_S
# after the last renewal (or after it was armed: then GRACE_S more), and LIFETIME_S after it was armed whoever renews;
# 0 is for ever. All are whole seconds of the kernel's uptime, because clocks are set while machines start. A renewal
# is a change of the file, whose times are compared with no clock; a file that is gone is not renewed.
#
# Nothing is written once it is armed, no failing command ends the watch (where dash and busybox cannot fork, they
# leave an eval, not the script), and powering off is tried again for ever. OUTRIDER_ROOT is for tests.

export TZ=UTC0 # what stat prints changes with the file alone
file=${0%/*}/lease

uptime_s() { # where it cannot be read, time goes on by $1
    up=
    read -r up _ 2>/dev/null <"$OUTRIDER_ROOT/proc/uptime"
    case ${up%%.*} in
    '' | *[!0-9]*) now=$((now + $1)) ;;
    *) now=${up%%.*} ;;
    esac
}

power_off() {
    asked=
    for command in poweroff 'shutdown -P now'; do
        if command -v timeout >/dev/null; then command="timeout -s KILL 60 $command"; fi
        if $command; then
            asked=yes
            break
        fi
    done
    # The shutdown waits for every process that ignores its signals.
    if [ "$asked" ]; then trap - HUP INT QUIT TERM; fi
}

look() {
    sleep "$tick"
    uptime_s "$tick"
    if [ ! "$over" ]; then
        found=$(stat -c '%i %y' "$file" 2>/dev/null)
        if [ "$found" ] && [ "$found" != "$seen" ]; then
            seen=$found
            ends=$((now + lease))
        fi
        if [ "$now" -ge "$ends" ] || { [ "$dies" -gt 0 ] && [ "$now" -ge "$dies" ]; }; then
            over=yes
        fi
    fi
    if [ "$over" ]; then power_off; fi
}

watch() {
    trap '' HUP INT QUIT TERM
    echo -1000 2>/dev/null >/proc/self/oom_score_adj
    lease=$1 over='' dies=0 now=$4
    uptime_s 0
    ends=$(($4 + $1 + $2))
    if [ "$ends" -lt $((now + lease)) ]; then ends=$((now + lease)); fi # started again, after something ended it
    if [ "$3" -gt 0 ]; then dies=$(($4 + $3)); fi
    tick=$((lease / 10))
    if [ "$tick" -lt 1 ]; then tick=1; fi
    if [ "$tick" -gt 5 ]; then tick=5; fi
    umask 000 # any process of the login user renews
    [ -e "$file" ] || touch "$file"
    umask 022
    seen=$(stat -c '%i %y' "$file" 2>/dev/null)
    while :; do command eval look; done
}

watched() { # the watch makes the file: within 16 s, or where nothing sleeps for less than a second, 35
    tries=0
    until [ -e "$file" ]; do
        tries=$((tries + 1))
        if [ "$tries" -gt 35 ]; then return 1; fi
        if [ "$tries" -gt 20 ] || ! sleep 0.05; then sleep 1; fi
    done
}

arm() {
    now=0
    uptime_s 0
    set -- watch "$@" "$now"
    rm -f "$file"
    # Early in a boot, when a unit with the usual dependencies would wait for whoever starts it.
    if [ -d "$OUTRIDER_ROOT/run/systemd/system" ] && systemd-run --quiet --no-block --unit=outrider-lease \
        --property=DefaultDependencies=no --property=Restart=always --property=RestartSec=5 \
        --setenv=PATH="$PATH" /bin/sh "$0" "$@" && watched; then
        return 0
    fi
    if command -v setsid >/dev/null; then
        setsid sh "$0" "$@" </dev/null >/dev/null 2>&1 &
    else
        nohup sh "$0" "$@" </dev/null >/dev/null 2>&1 &
    fi
    watched
}

mode=$1
shift
case $mode in
arm) arm "$@" ;;
watch) watch "$@" ;;
esac
