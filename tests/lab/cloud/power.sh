#!/bin/sh
# poweroff, halt, shutdown and systemctl of a host, under these names: they end its first process, and the kernel ends
# the rest. Nothing here can reach further: a signal does not leave the host's own pid namespace.
case "${0##*/}:$*" in
systemctl:*poweroff* | systemctl:*halt* | poweroff:* | halt:*) ;;
shutdown:*now* | shutdown:*+0*) ;;
systemctl:*)
	echo "System has not been booted with systemd as init system (PID 1). Can't operate." >&2
	exit 1
	;;
*)
	echo "${0##*/} $*: this machine knows no more than its end, now" >&2
	exit 1
	;;
esac
kill -s PWR 1 || exit
# bash, which is process 1, has not heard it where it had looked for signals and not begun to wait: 4 in 100 when a child
# of its own ends at the same time.
while sleep 0.1; do kill -s PWR 1; done
