# Process 1 of a host: NAME DISK LOWER [SHARED PATH PLACE]... -- [VISIBLE PATH...]. It is read from stdin, and after it
# come orders; it tells by stdout. It ends when the lab does, and everything in the host with it.
set -eu

boot() {
	name=$1 disk=$2 lower=$3
	shift 3
	root=$disk/root shared=()
	while [ "$1" != -- ]; do shared+=("$1" "$2") && shift 2; done
	shift

	read -r pid _ </proc/self/stat # this is still the machine's /proc: the pid by which the lab knows us
	echo "$pid"

	mount --make-rprivate /
	mount -t overlay overlay -o "lowerdir=$lower,upperdir=$disk/upper,workdir=$disk/work" "$root"
	for path in "$@"; do # what the host would not see, because it is on another file system or in a folder of its own
		if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}" && : >>"$root$path"; fi
		mount --rbind "$path" "$root$path"
		mount -o remount,bind,ro "$root$path"
	done
	mount --rbind /dev "$root/dev"
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
	mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
	mount -t tmpfs -o mode=0755 tmpfs "$root/run"
	mount -t proc proc "$root/proc"
	mount -t sysfs -o ro sysfs "$root/sys"
	set -- ${shared[@]+"${shared[@]}"}
	case " $* " in *" /sys/fs/cgroup/"*) mount -t tmpfs -o mode=0755 tmpfs "$root/sys/fs/cgroup" ;; esac
	while [ $# -gt 0 ]; do # folders of the lab's, at a place of the host's
		mkdir -p "$root$2"
		mount --bind "$1" "$root$2"
		shift 2
	done
	[ ! -e "$root/proc/sysrq-trigger" ] || mount --bind /dev/null "$root/proc/sysrq-trigger" # it is this machine's own
	echo "$name" >/proc/sys/kernel/hostname
	mkdir -p "$root/run/sshd" "$root/run/lock" "$root/.controller"

	links= # the commands that set them up come when they are there; an empty line ends them
	while read -r line && [ -n "$line" ]; do links+=$line$'\n'; done
	ip -batch - <<<"$links"
	cd "$root"
	pivot_root . .controller
	umount -l /.controller
	rmdir /.controller
	trap 'exit 0' PWR # how a host can end itself; it may have to be told twice (bash, between two looks for signals)
	echo up

	# bash takes the orphans while it waits here. sshd as process 1 would not.
	while read -r order; do
		case $order in
		sshd) /usr/sbin/sshd -D -e </dev/null >&2 & ;;
		"start "*) ${order#start } </dev/null >&2 & ;;
		esac
	done
}

boot "$@" # a function, because whatever reads stdin inside must find orders there and not the rest of this file
