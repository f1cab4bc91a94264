package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// Every setting is kept, made anew, or in the way before anything is touched:
// none is lost, none turns out to be unwritable when the old VM is gone.
func TestEverySettingHasAFate(t *testing.T) {
	t.Parallel()
	for _, key := range slices.Sorted(maps.Keys(everySetting)) {
		setting := everySetting[key]
		w, f, o := staleNode()
		w.Strategy = Recreate
		if setting.value != "" {
			f.VM.Config[key] = setting.value
		}
		refused := judge(w, f, o).Refused
		if (len(refused) > 0) != (setting.fate == never) {
			t.Errorf("%s=%s: refused %q, want it %s", key, setting.value, refused, setting.fate)
		}
		if setting.fate == never {
			continue
		}
		r := replacement()
		r.VM.Config[key] = setting.value
		config, err := r.newConfig("isos:iso/recast-new.iso")
		if err != nil {
			t.Fatal(err)
		}
		given, carried := config[key]
		if carried != (setting.fate == kept) || carried && given != setting.value {
			t.Errorf("%s: the new VM gets %q (%t), want %q %s", key, given, carried, setting.value, setting.fate)
		}
	}
}

// Two keys are set anew by the exchange itself.
func TestEverySettingIsListed(t *testing.T) {
	t.Parallel()
	for _, key := range slices.Concat(rootOnly, carried, hidden, renewed) {
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

// driveOptions is every option that a disk can have (qemu-server,
// PVE/QemuServer/Drive.pm, $alldrive_fmt), but file, size, serial, wwn and format.
const driveOptions = "aio=native,backup=0,bps=1048576,bps_max_length=2,bps_rd=1,bps_rd_max_length=2,bps_wr=1,bps_wr_max_length=2,cache=writeback,cyls=1," +
	"detect_zeroes=0,discard=on,heads=1,iops=10,iops_max=20,iops_max_length=2,iops_rd=5,iops_rd_max=6,iops_rd_max_length=2,iops_wr=5,iops_wr_max=6," +
	"iops_wr_max_length=2,iothread=1,mbps=1.5,mbps_max=2,mbps_rd=1,mbps_rd_max=2,mbps_wr=1,mbps_wr_max=2,media=disk,model=DISK%201,product=disk one," +
	"queues=4,replicate=0,rerror=report,ro=0,scsiblock=0,secs=1,shared=1,snapshot=0,ssd=1,trans=lba,vendor=acme,werror=stop"

func TestTheBlankDiskHasEveryOption(t *testing.T) {
	t.Parallel()
	const names = "serial=recast-1,wwn=0x37eb0b496c370925"
	for name, tc := range map[string]struct{ volid, size, want string }{
		"qcow2":                 {"fast:9011/vm-9011-disk-0.qcow2", "10G", "fast:10," + driveOptions + ",format=qcow2," + names},
		"raw":                   {"fast:9011/vm-9011-disk-0.raw", "10G", "fast:10," + driveOptions + ",format=raw," + names},
		"vmdk":                  {"fast:9011/vm-9011-disk-0.vmdk", "10G", "fast:10," + driveOptions + ",format=vmdk," + names},
		"a block storage":       {"thin:vm-9011-disk-0", "10G", "thin:10," + driveOptions + "," + names},
		"LVM with qcow2":        {"vg:vm-9011-disk-0.qcow2", "10G", "vg:10," + driveOptions + ",format=qcow2," + names},
		"a linked clone":        {"fast:400/base-400-disk-0.qcow2/9011/vm-9011-disk-0.qcow2", "10G", "fast:10," + driveOptions + ",format=qcow2," + names},
		"megabytes":             {"thin:vm-9011-disk-0", "10752M", "thin:10.5," + driveOptions + "," + names},
		"kilobytes":             {"thin:vm-9011-disk-0", "10485764K", "thin:10.000003814697266," + driveOptions + "," + names},
		"terabytes":             {"thin:vm-9011-disk-0", "2T", "thin:2048," + driveOptions + "," + names},
		"bytes":                 {"thin:vm-9011-disk-0", "10737418240", "thin:10," + driveOptions + "," + names},
		"decimals":              {"thin:vm-9011-disk-0", "1.5G", "thin:1.5," + driveOptions + "," + names},
		"an odd size, imported": {"thin:vm-9011-disk-0", "10737418241", "thin:10.000000000931323," + driveOptions + "," + names},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := ParseDisk("scsi0", tc.volid+","+driveOptions+",serial=old,wwn=0x5000c50015ea71aa,size="+tc.size)
			if err != nil {
				t.Fatal(err)
			}
			got := (&Replace{Serial: "recast-1"}).blankDisk(d)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			// Proxmox multiplies by 2^20 and rounds up to whole KiB (pve-common, Tools.pm, convert_size).
			blank, err := ParseDisk("scsi0", strings.Replace(got, ":", ":x,size=", 1))
			if err != nil {
				t.Fatal(err)
			}
			if gib := (Disk{Options: []string{"size=" + blank.Option("size") + "G"}}); gib.SizeBytes() < d.SizeBytes() {
				t.Errorf("%s makes a disk of %d bytes, smaller than %d", got, gib.SizeBytes(), d.SizeBytes())
			}
		})
	}
}

func TestTheNewBootOrder(t *testing.T) {
	t.Parallel()
	for old, want := range map[string]string{
		"":                               "order=scsi0;ide2",
		"order=scsi1;scsi0;net0":         "order=scsi0;ide2;scsi1;net0",
		"cdn":                            "order=scsi0;ide2", // which is Proxmox's default too, and names no device
		"c":                              "order=scsi0;ide2",
		"legacy=cdn":                     "order=scsi0;ide2",
		"legacy=c,order=scsi0;net0":      "order=scsi0;ide2;net0",
		"order=scsi0;net0,legacy=c":      "order=scsi0;ide2;net0",
		"order=scsi0;hostpci0;usb1;net9": "order=scsi0;ide2;hostpci0;usb1;net9",
		" ":                              "order=scsi0;ide2", // of a VM whose disks were all reassigned
		"order= ":                        "order=scsi0;ide2",
	} {
		if got := bootOrder(old, "scsi0", "ide2"); got != want {
			t.Errorf("%q becomes %q, want %q", old, got, want)
		}
	}
}
