package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// renewed are the configuration keys that Proxmox makes itself on create, or
// that belong to the VM object that is gone. A token can't write vmgenid.
var renewed = []string{"digest", "meta", "vmgenid", "lock", "parent", "snaptime", "runningmachine", "runningcpu", "running-nets-host-mtu", "vmstate"}

func (r *Replace) created(ctx context.Context) (string, error) {
	vm, found, err := r.current(ctx)
	if err != nil || !found || vm.MadeBy() != r.Run {
		return "", err
	}
	return fmt.Sprintf("%s was made by this run", vm), nil
}

func (r *Replace) createVM(ctx context.Context) error {
	iso, err := r.ISO(ctx)
	if err != nil {
		return err
	}
	config, err := r.newConfig(iso)
	if err != nil {
		return err
	}
	return r.create(ctx, config)
}

func (r *Replace) create(ctx context.Context, config map[string]string) error {
	if err := RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := r.Proxmox.CreateVM(ctx, r.VM.Host, r.VM.ID, config); err != nil {
		return fmt.Errorf("create VM %d on %s: %w", r.VM.ID, r.VM.Host, err)
	}
	return nil
}

// newConfig is the remembered configuration with a blank system disk and the
// boot ISO in the CD drive; see oldConfig.
func (r *Replace) newConfig(iso string) (map[string]string, error) {
	config, err := r.oldConfig()
	if err != nil {
		return nil, err
	}
	disks, err := r.VM.Disks()
	if err != nil {
		return nil, err
	}
	system, err := r.systemDisk(disks)
	if err != nil {
		return nil, err
	}
	config[system.Key] = r.blankDisk(system)
	cd := cdKey(r.VM.Config, disks)
	config[cd] = iso + ",media=cdrom"
	config["boot"] = bootOrder(r.VM.Config["boot"], system.Key, cd)
	if r.Blank != nil {
		config[r.Blank.Key] = r.Blank.Value
	}
	return config, r.takeOut(config)
}

// oldConfig is the remembered configuration without disks, which attach gives
// back, and with the run's mark. Until the node is healthy onboot is off, and the
// VM protected: the delete of the one before it has no digest, and Proxmox may
// carry out late what it was sent twice, or got no answer to.
func (r *Replace) oldConfig() (map[string]string, error) {
	if _, err := r.VM.Disks(); err != nil {
		return nil, err
	}
	config := oldSettings(r.VM)
	config["onboot"], config["protection"] = "0", "1"
	description, err := r.marked()
	if err != nil {
		return nil, err
	}
	config["description"] = description
	return config, nil
}

// oldSettings is the configuration that a new VM gets in place of an old one:
// all but what Proxmox makes itself, and no disks.
func oldSettings(vm VM) map[string]string {
	config := map[string]string{}
	for key, value := range vm.Config {
		switch d, err := ParseDisk(key, value); {
		case slices.Contains(renewed, key), err == nil && !d.CDROM, err != nil && IsDiskKey(key), key == "arch": // see forRoot
		case err == nil && d.CloudInit():
			config[key] = newCloudInit(d)
		case err == nil:
			config[key] = withoutOption(d, "size").Value()
		default:
			config[key] = value
		}
	}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	return config
}

// marked is the VM's own description with the run's mark.
func (r *Replace) marked() (string, error) {
	text := markDescription(r.VM.Config["description"], r.Run, r.Build)
	if n := len([]rune(text)); n > maxDescription {
		return "", fault.ParkedHalf.Refusedf("%s: with the run's mark its description has %d characters, Proxmox allows %d", r.VM, n, maxDescription)
	}
	return text, nil
}

func (r *Replace) systemDisk(disks []Disk) (Disk, error) {
	i := slices.IndexFunc(disks, func(d Disk) bool { return r.isSystem(d.Key) })
	if i < 0 {
		return Disk{}, fault.ParkedHalf.Refusedf("%s: its record names no system disk", r.VM)
	}
	return disks[i], nil
}

func (r *Replace) isSystem(key string) bool {
	return slices.ContainsFunc(r.Disks, func(d ParkedDisk) bool { return d.System && d.Key == key })
}

// blankDisk is the value that makes Proxmox allocate a disk like d: same
// storage, format and options, with our serial and WWN.
func (r *Replace) blankDisk(d Disk) string {
	bytes := max(d.SizeBytes(), uint64(max(r.SystemGiB, 0))<<30)
	options := withFormat(withoutOption(d, "size", "format"))
	blank := Disk{
		Volid:   d.Storage() + ":" + strconv.FormatFloat(float64(bytes)/(1<<30), 'f', -1, 64),
		Options: Disk{Key: d.Key, Options: options}.named(r.Serial),
	}
	return blank.Value()
}

// newCloudInit is the value that makes Proxmox make a cloud-init drive like d.
func newCloudInit(d Disk) string {
	return Disk{Volid: d.Storage() + ":cloudinit", Options: withFormat(withoutOption(d, "size", "media", "format"))}.Value()
}

// withFormat are the options of d, with the format that its volume's name shows.
// A storage of files has a default of its own, and cloud-init drives another
// (API2/Qemu.pm, create_disks); block storages show none, and need none.
func withFormat(d Disk) []string {
	for _, format := range []string{"raw", "qcow2", "vmdk"} {
		if strings.HasSuffix(d.Volid, "."+format) {
			return append(d.Options, "format="+format)
		}
	}
	return d.Options
}

// withoutOption drops options that only Proxmox may state, or that change.
func withoutOption(d Disk, names ...string) Disk {
	d.Options = slices.DeleteFunc(slices.Clone(d.Options), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return slices.Contains(names, name)
	})
	return d
}

// cdKey picks the CD drive for the boot ISO: an empty one, else the one that is there, else a free key.
func cdKey(config map[string]string, disks []Disk) string {
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

// bootsFirst says whether the firmware looks at that drive before all others.
func (vm VM) bootsFirst(key string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(vm.Config["boot"], "order="), ";")
	return first == key
}

// bootOrder puts the system disk first and the CD drive right behind it: a
// blank disk does not boot, an installed one wins over an ISO that is still in.
// cd is "" where there is none to be booted from.
func bootOrder(old, system, cd string) string {
	order := []string{system}
	if cd != "" {
		order = append(order, cd)
	}
	for _, key := range bootDevices(old) {
		if !slices.Contains(order, key) {
			order = append(order, key)
		}
	}
	return "order=" + strings.Join(order, ";")
}
