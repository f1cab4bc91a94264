package cluster

import (
	"slices"
	"testing"
)

// fate is what becomes of a setting when its VM is made again.
type fate string

const (
	kept  fate = "given to the new VM as it was"
	anew  fate = "made anew by Proxmox, or gone with the VM object"
	never fate = "in the way of recreate"
)

// everySetting is every key of qemu-server's $confdesc that is no drive (PVE 8.4
// and 9.2: PVE/QemuServer.pm and what it includes), each with a value that it can have.
var everySetting = map[string]struct {
	value string
	fate  fate
}{
	"acpi": {"1", kept}, "affinity": {"0-3", never}, "agent": {"enabled=1,fstrim_cloned_disks=1", kept}, "allow-ksm": {"0", kept},
	"amd-sev": {"type=snp", never}, "arch": {"aarch64", never}, "args": {"-device x", never}, "audio0": {"device=AC97", kept}, "autostart": {"1", kept},
	"balloon": {"0", kept}, "bios": {"ovmf", kept}, "bootdisk": {"scsi0", kept},
	"cicustom": {"vendor=local:snippets/v.yaml", never}, "cipassword": {"**********", never}, "ciupgrade": {"0", kept}, "citype": {"nocloud", kept},
	"ciuser": {"core", kept}, "cores": {"4", kept}, "cpu": {"host,flags=+aes;+pcid", kept}, "cpulimit": {"1.5", kept}, "cpuunits": {"200", kept},
	"freeze": {"0", kept}, "hookscript": {"local:snippets/h.pl", never}, "hostpci0": {"mapping=gpu,pcie=1", kept}, "hostpci1": {"0000:01:00.0", never},
	"hotplug": {"network,disk", kept}, "hugepages": {"2", never}, "intel-tdx": {"type=tdx", never}, "ipconfig0": {"ip=10.0.0.2/24,gw=10.0.0.1", kept},
	"ivshmem": {"size=32", never}, "keephugepages": {"1", never}, "keyboard": {"de", kept}, "kvm": {"1", kept}, "localtime": {"1", kept},
	"machine": {"q35,viommu=intel", kept}, "memory": {"current=4096", kept}, "meta": {"creation-qemu=9.2.0,ctime=1700000000", anew},
	"migrate_downtime": {"0.5", kept}, "migrate_speed": {"100", kept}, "name": {"wk1", kept}, "nameserver": {"10.0.0.1", kept},
	"net0": {"virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,link_down=1,mtu=9000,queues=4,rate=10,tag=7,trunks=8;9", kept},
	"numa": {"1", kept}, "numa0": {"cpus=0-3,hostnodes=0,memory=4096,policy=bind", kept}, "ostype": {"l26", kept}, "parallel0": {"/dev/parport0", never},
	"protection": {"1", kept}, "reboot": {"0", kept}, "rng0": {"source=/dev/urandom,max_bytes=1024", kept}, "runningcpu": {"kvm64", anew},
	"runningmachine": {"pc-q35-9.2", anew}, "running-nets-host-mtu": {"net0=1500", anew}, "scsihw": {"virtio-scsi-single", kept},
	"searchdomain": {"example.org", kept}, "serial0": {"socket", kept}, "serial1": {"/dev/ttyS0", never}, "shares": {"500", kept},
	"smbios1": {"base64=1,serial=QUJD,uuid=u-wk1", kept}, "smp": {"2", kept}, "snaptime": {"1700000000", anew}, "sockets": {"1", kept},
	"spice_enhancements": {"videostreaming=all", never},
	// Proxmox keeps the keys URL-encoded and shows them so; it wants them so as well (API2/Qemu.pm, format urlencoded).
	"sshkeys":   {"ssh-ed25519%20AAAA%2Bb%20me%40host%0A", kept},
	"startdate": {"2026-01-01T00:00:00", kept}, "startup": {"order=2,up=30", kept}, "tablet": {"0", kept}, "tags": {"roll;talos", kept}, "tdf": {"1", kept},
	"template": {"0", kept}, "usb0": {"mapping=stick,usb3=1", kept}, "usb1": {"host=046d:c52b", never}, "usb2": {"host=spice", kept}, "vcpus": {"2", kept},
	"vga": {"serial0", kept}, "virtiofs0": {"dirid=share,cache=auto", kept}, "vmgenid": {"0a0b0c0d-0000-4000-8000-000000000000", anew},
	"vmstatestorage": {"fast", kept}, "watchdog": {"model=i6300esb,action=reset", kept},
	"lock": {"", anew}, "parent": {"", anew}, "vmstate": {"", anew}, // refused for every new system disk where they are set: see TestReplacingAnOccupiedVMIsImpossible
	"nosuch": {"1", never}, "nosuch7": {"1", never},
}

// Two keys are set anew by the exchange itself.
func TestEverySettingIsListed(t *testing.T) {
	t.Parallel()
	for _, key := range slices.Concat(rootOnly, carried, hidden, NeverCarried) {
		if _, listed := everySetting[key]; !listed && !slices.Contains([]string{"boot", "description", "digest", "onboot"}, key) {
			t.Errorf("%s has no sample", key)
		}
	}
	for _, list := range [][]string{rootOnly, carried, carriedBuses, hidden} {
		if !slices.IsSorted(list) {
			t.Errorf("the lists are compared by eye with Proxmox's source: keep them sorted: %q", list)
		}
	}
}

// TestEverySettingIsJudged: what a new VM can't be given is in the way before anything is touched.
func TestEverySettingIsJudged(t *testing.T) {
	t.Parallel()
	for key, setting := range everySetting {
		w, f, o := staleNode()
		w.Strategy = Recreate
		if setting.value != "" {
			f.VM.Config[key] = setting.value
		}
		if refused := judge(w, f, o).Refused; (len(refused) > 0) != (setting.fate == never) {
			t.Errorf("%s=%s: refused %q, want it %s", key, setting.value, refused, setting.fate)
		}
	}
}
