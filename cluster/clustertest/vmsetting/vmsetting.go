// Package vmsetting has every setting that a VM can have, with what becomes of it when the VM is
// made again. It imports nothing, so that the tests of cluster itself can use it.
package vmsetting

// Fate is what happens to a setting when its VM is created again.
type Fate string

// The fates.
const (
	Kept  Fate = "given to the new VM as it was"
	Late  Fate = "set on the new VM once its node serves"
	Anew  Fate = "made again by Proxmox, or gone with the VM object"
	Never Fate = "in the way of recreate"
)

// Every is every key of qemu-server's $confdesc that is not a drive (PVE 8.4 and 9.2:
// PVE/QemuServer.pm and what it includes), each with a value that it can have.
var Every = map[string]struct {
	Value string
	Fate  Fate
}{
	"acpi": {"1", Kept}, "affinity": {"0-3", Never}, "agent": {"enabled=1,fstrim_cloned_disks=1", Kept}, "allow-ksm": {"0", Kept},
	"amd-sev": {"type=snp", Never}, "arch": {"aarch64", Never}, "args": {"-device x", Never}, "audio0": {"device=AC97", Kept}, "autostart": {"1", Kept},
	"balloon": {"0", Kept}, "bios": {"ovmf", Kept}, "bootdisk": {"scsi0", Kept},
	"cicustom": {"vendor=local:snippets/v.yaml", Never}, "cipassword": {"**********", Never}, "ciupgrade": {"0", Kept}, "citype": {"nocloud", Kept},
	"ciuser": {"core", Kept}, "cores": {"4", Kept}, "cpu": {"host,flags=+aes;+pcid", Kept}, "cpulimit": {"1.5", Kept}, "cpuunits": {"200", Kept},
	"freeze": {"0", Kept}, "hookscript": {"local:snippets/h.pl", Never}, "hostpci0": {"mapping=gpu,pcie=1", Kept}, "hostpci1": {"0000:01:00.0", Never},
	"hotplug": {"network,disk", Kept}, "hugepages": {"2", Never}, "intel-tdx": {"type=tdx", Never}, "ipconfig0": {"ip=10.0.0.2/24,gw=10.0.0.1", Kept},
	"ivshmem": {"size=32", Never}, "keephugepages": {"1", Never}, "keyboard": {"de", Kept}, "kvm": {"1", Kept}, "localtime": {"1", Kept},
	"machine": {"q35,viommu=intel", Kept}, "memory": {"current=4096", Kept}, "meta": {"creation-qemu=9.2.0,ctime=1700000000", Anew},
	"migrate_downtime": {"0.5", Kept}, "migrate_speed": {"100", Kept}, "name": {"wk1", Kept}, "nameserver": {"10.0.0.1", Kept},
	"net0": {"virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,link_down=1,mtu=9000,queues=4,rate=10,tag=7,trunks=8;9", Kept},
	"numa": {"1", Kept}, "numa0": {"cpus=0-3,hostnodes=0,memory=4096,policy=bind", Kept}, "ostype": {"l26", Kept}, "parallel0": {"/dev/parport0", Never},
	"protection": {"1", Kept}, "reboot": {"0", Kept}, "rng0": {"source=/dev/urandom,max_bytes=1024", Kept}, "runningcpu": {"kvm64", Anew},
	"runningmachine": {"pc-q35-9.2", Anew}, "running-nets-host-mtu": {"net0=1500", Anew}, "scsihw": {"virtio-scsi-single", Kept},
	"searchdomain": {"example.org", Kept}, "serial0": {"socket", Kept}, "serial1": {"/dev/ttyS0", Never}, "shares": {"500", Kept},
	"smbios1": {"base64=1,serial=QUJD,uuid=u-wk1", Kept}, "smp": {"2", Kept}, "snaptime": {"1700000000", Anew}, "sockets": {"1", Kept},
	"spice_enhancements": {"videostreaming=all", Never},
	// Proxmox stores and returns the keys URL-encoded, and requires them so (API2/Qemu.pm, format urlencoded).
	"sshkeys":   {"ssh-ed25519%20AAAA%2Bb%20me%40host%0A", Kept},
	"startdate": {"2026-01-01T00:00:00", Kept}, "startup": {"order=2,up=30", Kept}, "tablet": {"0", Kept}, "tags": {"roll;talos", Late}, "tdf": {"1", Kept},
	"template": {"0", Kept}, "usb0": {"mapping=stick,usb3=1", Kept}, "usb1": {"host=046d:c52b", Never}, "usb2": {"host=spice", Kept}, "vcpus": {"2", Kept},
	"vga": {"serial0", Kept}, "virtiofs0": {"dirid=share,cache=auto", Kept}, "vmgenid": {"0a0b0c0d-0000-4000-8000-000000000000", Anew},
	"vmstatestorage": {"fast", Kept}, "watchdog": {"model=i6300esb,action=reset", Kept},
	"lock": {"", Anew}, "parent": {"", Anew}, "vmstate": {"", Anew}, // refused for every new system disk where they are set: see TestReplacingAnOccupiedVMIsImpossible
	"nosuch": {"1", Never}, "nosuch7": {"1", Never},
}
