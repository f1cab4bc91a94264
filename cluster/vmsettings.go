package cluster

import (
	"slices"
	"strings"
)

// NeverCarried are the configuration keys that Proxmox makes itself on create, or
// that belong to the VM object that is gone. A token can't write vmgenid.
var NeverCarried = []string{"digest", "meta", "vmgenid", "lock", "parent", "snaptime", "runningmachine", "runningcpu", "running-nets-host-mtu", "vmstate"}

// OldSettings is the configuration that a new VM gets in place of an old one:
// all but what Proxmox makes itself, and no disks.
func OldSettings(vm VM) map[string]string {
	config := map[string]string{}
	for key, value := range vm.Config {
		switch d, err := ParseDisk(key, value); {
		case slices.Contains(NeverCarried, key), err == nil && !d.CDROM, err != nil && IsDiskKey(key), key == "arch": // see forRoot
		case err == nil && d.CloudInit():
			config[key] = newCloudInit(d)
		case err == nil:
			config[key] = WithoutOption(d, "size").Value()
		default:
			config[key] = value
		}
	}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	return config
}

// newCloudInit is the value that makes Proxmox make a cloud-init drive like d.
func newCloudInit(d Disk) string {
	return Disk{Volid: d.Storage() + ":cloudinit", Options: WithFormat(WithoutOption(d, "size", "media", "format"))}.Value()
}

// WithFormat are the options of d, with the format that its volume's name shows.
// A storage of files has a default of its own, and cloud-init drives another
// (API2/Qemu.pm, create_disks); block storages show none, and need none.
func WithFormat(d Disk) []string {
	for _, format := range []string{"raw", "qcow2", "vmdk"} {
		if strings.HasSuffix(d.Volid, "."+format) {
			return append(d.Options, "format="+format)
		}
	}
	return d.Options
}

// WithoutOption drops options that only Proxmox may state, or that change.
func WithoutOption(d Disk, names ...string) Disk {
	d.Options = slices.DeleteFunc(slices.Clone(d.Options), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return slices.Contains(names, name)
	})
	return d
}

// CDKey picks the CD drive for the boot ISO: an empty one, else the one that is there, else a free key.
func CDKey(config map[string]string, disks []Disk) string {
	drive := ""
	for _, d := range disks {
		switch {
		case !d.CDROM || d.CloudInit():
		case d.Volid == "none":
			return d.Key
		case drive == "":
			drive = d.Key
		}
	}
	if drive != "" {
		return drive
	}
	for _, key := range []string{"ide2", "ide0", "ide1", "ide3", "sata5", "sata4"} {
		if _, taken := config[key]; !taken {
			return key
		}
	}
	return "sata3"
}

// BootsFirst says whether the firmware looks at that drive before all others.
func (vm VM) BootsFirst(key string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(vm.Config["boot"], "order="), ";")
	return first == key
}
