package pveapi_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/world"
)

// values are valid values of each option that a token may set, one for every form; those
// of drives have all options of a drive.
var values = map[string][]string{
	"acpi": {"0"}, "allow-ksm": {"0"}, "agent": {"1", "enabled=1,freeze-fs=0,fstrim_cloned_disks=1,type=virtio"}, "audio0": {"device=ich9-intel-hda,driver=spice"},
	"autostart": {"1"}, "balloon": {"256"}, "bios": {"ovmf", "seabios"}, "boot": {"order=scsi0;net0", "legacy=cdn"}, "bootdisk": {"scsi0"},
	"cicustom": {"user=snippets:snippets/user.yaml"}, "cipassword": {"secret"}, "citype": {"nocloud"}, "ciupgrade": {"0"}, "ciuser": {"talos"},
	"cores": {"3"}, "cpu": {"host", "cputype=x86-64-v3,flags=+aes,hidden=1"}, "cpulimit": {"1.5"}, "cpuunits": {"200"},
	"description": {"first\nsecond, with = and #\n\nthird ü"}, "freeze": {"1"}, "hostpci": {"mapping=gpu,pcie=1,x-vga=0"},
	"hotplug": {"disk,network", "0"}, "ipconfig": {"ip=10.0.0.5/24,gw=10.0.0.1", "ip6=auto"}, "keyboard": {"de-ch"}, "kvm": {"0"}, "localtime": {"1"},
	"machine": {"q35", "type=pc-q35-10.1,viommu=virtio"}, "memory": {"1024", "current=2048"}, "migrate_downtime": {"0.2"}, "migrate_speed": {"10"},
	"name": {"node-1.example.org"}, "nameserver": {"10.0.0.1 10.0.0.2"},
	"net":  {"virtio=BC:24:11:00:00:07,bridge=vmbr0,firewall=1,link_down=1,mtu=1,queues=2,rate=12.5,tag=7,trunks=1;2-4"},
	"numa": {"1"}, "numa#": {"cpus=0-1,hostnodes=0,memory=256,policy=bind"}, "onboot": {"1"}, "ostype": {"l26", "other"}, "protection": {"1"},
	"reboot": {"0"}, "rng0": {"source=/dev/urandom,max_bytes=1024,period=1000", "/dev/hwrng"}, "scsihw": {"virtio-scsi-single"}, "searchdomain": {"example.org"},
	"serial": {"socket"}, "shares": {"500"}, "smbios1": {"uuid=00000000-0000-4000-8000-000000000007,base64=1,serial=c2VyaWFs,sku=c2t1"}, "smp": {"2"},
	"sockets": {"2"}, "sshkeys": {"ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIDX6%20me%0A"}, "startdate": {"now", "2026-01-01T10:00:00"},
	"startup": {"order=1,up=30,down=60", "5"}, "tablet": {"0"}, "tags": {"prod;recast;talos"}, "tdf": {"1"}, "template": {"1"},
	"usb": {"mapping=stick,usb3=1", "spice"}, "vcpus": {"1"}, "vga": {"serial0", "type=std,memory=32,clipboard=vnc"}, "virtiofs": {"dirid=share,cache=always,direct-io=1,expose-acl=1,expose-xattr=1"},
	"vmstatestorage": {"fast"}, "watchdog": {"model=i6300esb,action=reset"},

	"efidisk0":  {"fast:1,efitype=4m,pre-enrolled-keys=1", "thin:1,efitype=2m"},
	"tpmstate0": {"fast:1,version=v2.0"},
	"ide": {
		"fast:1,model=disk1,serial=s,ssd=1,wwn=0x5000000000000001", "isos:iso/boot.iso,media=cdrom", "none,media=cdrom", "fast:cloudinit",
	},
	"sata": {"fast:1,ssd=1,wwn=0x5000000000000001,cache=none,discard=ignore,aio=threads,werror=stop,rerror=report"},
	"scsi": {
		"fast:1,aio=native,backup=0,cache=writeback,detect_zeroes=0,discard=on,iothread=1,product=p,queues=2,replicate=0,rerror=ignore,ro=1,scsiblock=0," +
			"serial=a-20-byte-serial-no1,shared=1,snapshot=0,ssd=1,vendor=v,werror=enospc,wwn=0x5000000000000001",
		"fast:1,bps_max_length=1,bps_rd=1024,bps_rd_max_length=2,bps_wr=1024,bps_wr_max_length=3,iops_max_length=4,iops_rd=5,iops_rd_max=6,iops_rd_max_length=7," +
			"iops_wr=8,iops_wr_max=9,iops_wr_max_length=10,mbps_rd=1.5,mbps_rd_max=2.5,mbps_wr=3.5,mbps_wr_max=4.5",
		"thin:1,bps=1024,iops=10,iops_max=20,mbps=1.5,mbps_max=2.5",
	},
	"virtio": {"fast:1,iothread=1,ro=1,snapshot=0,shared=1"},
}

// rootOnly are values of the options that no token may set.
var rootOnly = map[string]string{
	"affinity": "0-3", "amd-sev": "type=std", "arch": "x86_64", "args": "-S", "hookscript": "snippets:snippets/hook.pl", "hugepages": "2",
	"intel-tdx": "type=tdx", "ivshmem": "size=32", "keephugepages": "1", "lock": "backup", "parallel0": "/dev/parport0", "spice_enhancements": "videostreaming=all",
	"vmgenid": "00000000-0000-4000-8000-000000000007",
}

// besides are parameters of a create that are no options of the VM, and options that can't be created: aliases and leftovers.
var besides = []string{
	"archive", "bwlimit", "cdrom", "force", "ha-managed", "import-working-storage", "live-restore", "node", "pool", "start", "storage", "unique", "unused", "vmid",
}

// richLab is a lab whose token has every privilege that a token can have.
func richLab(t *testing.T, l *lab) {
	t.Helper()
	l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: world.Administrator, Propagate: true})
	l.world.AddStorage(world.Storage{ID: "snippets", Type: "dir", Content: []string{"snippets"}})
	apidoctest.Check(t, l.rec)
}

// TestEveryOptionIsKnown: the tables contain every option of Proxmox.
func TestEveryOptionIsKnown(t *testing.T) {
	t.Parallel()
	defined, ok := apidoctest.Schema(t).Parameters("POST", "/nodes/{node}/qemu")
	if !ok {
		t.Fatal("the schema has no way to create a VM")
	}
	for _, p := range defined {
		name := p.Name
		if name == "numa" && p.Indexed {
			name = "numa#"
		}
		_, root := rootOnly[name]
		_, numbered := rootOnly[name+"0"]
		if values[name] == nil && !root && !numbered && !slices.Contains(besides, name) {
			t.Errorf("%s is in no table", name)
		}
	}
}

// TestOptionsSurviveARecreate: a VM's configuration shows what it was created with, and a
// VM created from that shows the same.
func TestOptionsSurviveARecreate(t *testing.T) {
	t.Parallel()
	for name, list := range values {
		for i, value := range list {
			t.Run(fmt.Sprintf("%s %d", name, i), func(t *testing.T) {
				inLab(t, func(t *testing.T, l *lab) {
					richLab(t, l)
					key := optionKey(name)
					first := map[string]string{"vmid": "9012", key: value}
					for with, also := range map[string]string{"scsi0": "fast:1", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "memory": "512"} {
						if key != with {
							first[with] = also
						}
					}
					taskOK(t, l.task("POST", "/nodes/pve1/qemu", form(first)...))
					shown := l.config(9012)
					same(t, stored(key, value), fmt.Sprint(shown[key]))
					again := map[string]string{"vmid": "9013"}
					for key, value := range shown {
						again[key] = fmt.Sprint(value)
					}
					if key == "description" {
						again[key] += "\n" // it is not stored
					}
					if again["template"] == "1" {
						delete(again, "template") // another template can't use the base volume
					}
					taskOK(t, l.task("POST", "/nodes/pve1/qemu", form(again)...))
					want := maps.Clone(shown)
					if want["template"] != nil {
						delete(want, "template")
					}
					same(t, want, l.config(9013))
				})
			})
		}
	}
}

// optionKey is one of a numbered option's keys.
func optionKey(name string) string {
	switch name {
	case "numa#":
		return "numa0"
	case "hostpci", "ide", "ipconfig", "net", "sata", "scsi", "serial", "usb", "virtio", "virtiofs":
		return name + "1"
	}
	return name
}

func form(params map[string]string) []string {
	var list []string
	for name, value := range params {
		list = append(list, name+"="+value)
	}
	return list
}

var newVolume = regexp.MustCompile(`^(fast|thin):(1|cloudinit)`)

// stored is how the configuration shows a value.
func stored(key, value string) string {
	if key == "cipassword" {
		return "**********"
	}
	m := newVolume.FindStringSubmatch(value)
	if m == nil {
		if strings.HasPrefix(value, "isos:") {
			value += ",size=3"
		}
		return value
	}
	options := strings.Split(value, ",")
	first, size := fmt.Sprintf("%s:9012/vm-9012-disk-0.raw", m[1]), "1G"
	switch {
	case m[2] == "cloudinit":
		first, size = "fast:9012/vm-9012-cloudinit.qcow2", "4M"
		options = append(options, "media=cdrom")
	case key == "efidisk0" && m[1] == "fast":
		size = "528K"
		options = append(options, "ms-cert=2023")
	case key == "efidisk0" || key == "tpmstate0":
		size = "4M"
	}
	if m[1] == "thin" {
		first = "thin:vm-9012-disk-0"
	}
	if key == "scsi1" && m[1] == "fast" || key == "virtio1" || key == "tpmstate0" || key == "sata1" {
		first = fmt.Sprintf("fast:9012/vm-9012-disk-%d.raw", number(key))
	}
	rest := slices.Sorted(slices.Values(append(options[1:], "size="+size)))
	return strings.Join(append([]string{first}, rest...), ",")
}

// number is the number of the volume beside scsi0's: numbers are assigned by key.
func number(key string) int {
	if key < "scsi0" {
		return 0
	}
	return 1
}

// TestOptionsOfRoots: the error names the option; even root's token can't set it.
func TestOptionsOfRoots(t *testing.T) {
	t.Parallel()
	for key, value := range rootOnly {
		t.Run(key, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				richLab(t, l)
				want := fmt.Sprintf("500 only root can set '%s' config", key)
				for _, r := range []reply{
					l.do("POST", "/nodes/pve1/qemu", "vmid=9012", key+"="+value),
					l.do("PUT", vm+"/config", key+"="+value),
					l.do("PUT", vm+"/config", "delete="+key),
					l.root("PUT", vm+"/config", key+"="+value),
				} {
					same(t, want, r.Status)
				}
			})
		})
	}
}

// TestPasswordIsMasked: nobody can read a password.
func TestPasswordIsMasked(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		richLab(t, l)
		l.putOK(vm+"/config", "cipassword=secret")
		same(t, "**********", l.config(9011)["cipassword"])
		for _, row := range l.do("GET", vm+"/pending").Data.([]any) {
			if r := row.(map[string]any); r["key"] == "cipassword" && r["value"] != "**********" {
				t.Errorf("pending shows %v", r)
			}
		}
	})
}

// TestMappedDevices: a mapping needs the privilege to use it, and only a start needs its device.
func TestMappedDevices(t *testing.T) {
	const use = "/mapping/pci/gpu"
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("Maps", "Mapping.Use")
		create := func() string {
			return l.outcome(l.do("POST", "/nodes/pve1/qemu", "vmid=9012", "hostpci0=mapping=gpu,pcie=1"))
		}
		same(t, "403 Permission check failed ("+use+", Mapping.Use)", create())
		l.world.Grant(world.ACL{Path: use, Who: tokenID, Role: "Maps"})
		taskOK(t, create())
		const start = "/nodes/pve1/qemu/9012/status/start"
		same(t, "PCI device mapping not found for 'gpu'", l.task("POST", start))
		l.world.AddMapping("pci", "gpu", "pve2")
		same(t, "PCI device mapping not found for 'gpu'", l.task("POST", start))
		l.world.AddMapping("pci", "gpu", "pve1", "pve2")
		taskOK(t, l.task("POST", start))
		same(t, "500 only root can set 'hostpci1' config for non-mapped devices", l.do("PUT", "/nodes/pve1/qemu/9012/config", "hostpci1=0000:01:00.0").Status)
	})
}

// TestOtherNames: cdrom is ide2, and a description is limited to what the file can hold.
func TestOtherNames(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		taskOK(t, l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "cdrom=isos:iso/boot.iso", "description=text\n\n"))
		if got := l.config(9012); got["ide2"] != "isos:iso/boot.iso,media=cdrom,size=3" || got["cdrom"] != nil || got["description"] != "text" {
			t.Error(got)
		}
		l.putOK("/nodes/pve1/qemu/9012/config", "cdrom=none", "description= \n")
		if got := l.config(9012); got["ide2"] != "none,media=cdrom" || got["description"] != nil {
			t.Error(got)
		}
		l.putOK("/nodes/pve1/qemu/9012/config", "delete=cdrom")
		same(t, nil, l.config(9012)["ide2"])
		const tooLarge = "500 balloon value too large (must be smaller than assigned memory)"
		for _, set := range []string{"balloon=4096", "memory=1024"} {
			same(t, set == "balloon=4096", l.do("PUT", vm+"/config", set, "cores=1").Status == tooLarge)
		}
		l.putOK(vm+"/config", "balloon=1024")
		same(t, tooLarge, l.do("PUT", vm+"/config", "memory=512").Status)
	})
}
