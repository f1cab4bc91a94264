package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// target is a place that needs a file.
type target struct {
	host    string // for a shared storage: the host that receives the upload
	storage string
	info    StorageInfo
	wrong   bool // a file with the same name and another size is there
}

func (t target) String() string {
	if t.info.Shared {
		return "storage " + t.storage
	}
	return "storage " + t.storage + " on " + t.host
}

// id names the target in step IDs.
func (t target) id() string {
	if t.info.Shared {
		return t.storage
	}
	return t.storage + "-" + t.host
}

// targets returns the places for the files of VMs on the given hosts: a shared storage once, a local storage on each
// host. It reports all problems with the storages at once.
func targets(ctx context.Context, store Storages, of Artefact, storages, hosts []string) ([]target, error) {
	hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	var list []target
	var errs []error
	served := map[string]bool{}
	for _, storage := range storages {
		on, err := lookAt(ctx, store, of, storage, hosts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, t := range on {
			served[t.host] = true
			if t.info.Shared && slices.ContainsFunc(list, func(have target) bool { return have.storage == storage }) {
				continue
			}
			list = append(list, t)
		}
	}
	for _, host := range hosts {
		if len(errs) == 0 && !served[host] {
			errs = append(errs, fault.WithHint(
				fault.StorageUnusable.Configf("no storage for %s on host %s: it has none of %q", of.Plural(), host, storages),
				"name a storage of that host in %s", of.Setting()))
		}
	}
	return list, errors.Join(errs...)
}

// lookAt returns a storage as each host that has it sees it.
func lookAt(ctx context.Context, store Storages, of Artefact, storage string, hosts []string) ([]target, error) {
	var list []target
	for _, host := range hosts {
		info, err := store.Storage(ctx, host, storage)
		if errors.Is(err, ErrNoStorage) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at storage %q on %s: %w", storage, host, err)
		}
		if !slices.Contains(info.Content, of.Content()) {
			return nil, fault.WithHint(
				fault.StorageUnusable.Configf("storage %q does not take %s: its content is %q", storage, of.Plural(), info.Content),
				"allow the content type with `pvesm set %s --content …,%s`%s, or name another storage in %s", storage, of.Content(), artefacts[of].since, of.Setting())
		}
		if !info.Active {
			return nil, fault.WithHint(fault.StorageUnusable.Errorf("storage %q is not active on %s", storage, host),
				"see `pvesm status --storage %s` on %s", storage, host)
		}
		list = append(list, target{host: host, storage: storage, info: info})
	}
	if len(list) == 0 {
		return nil, fault.WithHint(fault.StorageUnusable.Configf("storage %q is unknown: there is none of that name on %s", storage, strings.Join(hosts, ", ")),
			"`pvesm status --content %s` lists what %s can name", of.Content(), of.Setting())
	}
	return list, nil
}

// Storages describes storages of Proxmox.
type Storages interface {
	// Storage reads a storage as a host sees it. The error is ErrNoStorage if the host has no storage of that name.
	Storage(ctx context.Context, host, storage string) (StorageInfo, error)
}

// Usable returns the storages that take files of the given kind, and the hosts that see one of these storages,
// sorted. why says what is wrong with the other storages and hosts.
func Usable(ctx context.Context, store Storages, of Artefact, storages, hosts []string) (usable, served []string, why []error, err error) {
	for _, storage := range storages {
		on, err := lookAt(ctx, store, of, storage, hosts)
		switch {
		case fault.KindOf(err) == fault.Config:
			why = append(why, err)
			continue
		case err != nil:
			return nil, nil, nil, err
		}
		usable = append(usable, storage)
		for _, t := range on {
			served = append(served, t.host)
		}
	}
	served = slices.Compact(slices.Sorted(slices.Values(served)))
	for _, host := range hosts {
		if len(usable) > 0 && !slices.Contains(served, host) {
			why = append(why, fmt.Errorf("host %s has none of %q", host, usable))
		}
	}
	return usable, served, why, nil
}

// DiskHosts says, before anything is built or sent, on which storages disk images are published. In hosts, by
// schematic, it leaves only the hosts that see such a storage. If all is set, every storage and host has to be
// usable, and an unusable one is an error; otherwise why says what is unusable.
func DiskHosts(ctx context.Context, store Storages, storages []string, hosts map[string][]string, all bool) (usable []string, why []error, err error) {
	if all || len(hosts) == 0 {
		for _, name := range slices.Sorted(maps.Keys(hosts)) { // the errors of all schematics would mostly say the same
			if _, err = targets(ctx, store, DiskImage, storages, hosts[name]); err != nil {
				break
			}
		}
		return storages, nil, err
	}
	each := slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(hosts))...))))
	usable, served, why, err := Usable(ctx, store, DiskImage, storages, each)
	if err != nil {
		return nil, nil, err
	}
	for name, list := range hosts {
		hosts[name] = slices.DeleteFunc(slices.Clone(list), func(host string) bool { return !slices.Contains(served, host) })
	}
	maps.DeleteFunc(hosts, func(_ string, list []string) bool { return len(list) == 0 })
	return usable, why, nil
}

// Artefact is a kind of file that machines boot and that a [Publisher] brings to Proxmox storage.
type Artefact int

// The kinds of Artefact. Proxmox keeps them as content of the types "iso" and "import", and recognises them by the
// ends of their names.
const (
	BootISO Artefact = iota
	DiskImage
)

// artefacts holds what differs between the kinds.
var artefacts = [...]struct {
	name, plural string // in messages
	noun         string // in step IDs, titles and settings
	content      string // the type on Proxmox storage
	since        string // the Proxmox VE that has the type, if not every one; import came with pve-storage 8.2.8
	publish      string // the ID of the Publisher's step
	output       ImagerOutput
	stored       func(Finder, context.Context, string, string, string) (int64, bool, error)
	list         func(Shelf, context.Context, string, string) ([]StoredISO, error)
}{
	BootISO: {
		name: "boot ISO", plural: "ISOs", noun: "iso", content: "iso", publish: "publish", output: OutputISO,
		stored: Finder.ISO, list: Shelf.ISOs,
	},
	DiskImage: {
		name: "disk image", plural: "disk images", noun: "disk", content: "import", publish: "publish-disks", output: OutputDisk,
		since:  ", which needs Proxmox VE 8.3 and a storage of files",
		stored: Finder.DiskImage, list: Shelf.DiskImages,
	},
}

// String returns the kind's name in messages.
func (a Artefact) String() string { return artefacts[a].name }

// Plural returns the plural of the kind's name in messages.
func (a Artefact) Plural() string { return artefacts[a].plural }

// Content returns the kind's content type on Proxmox storage.
func (a Artefact) Content() string { return artefacts[a].content }

// Setting returns the key in recast.yaml that names the kind's storages.
func (a Artefact) Setting() string { return "images." + artefacts[a].noun + ".storage" }

// Stored looks for a file of the kind on a storage.
func (a Artefact) Stored(ctx context.Context, s Finder, host, storage, name string) (sizeBytes int64, found bool, err error) {
	return artefacts[a].stored(s, ctx, host, storage, name)
}

// File returns the kind's file in a lock. Without SHA256 the file was not built yet.
func (a Artefact) File(lock schematics.Lock, e schematics.Locked) schematics.BootFile {
	if a == BootISO {
		return e.ISO
	}
	if e.Disk == (schematics.Disk{}) {
		return schematics.BootFile{Name: lock.DiskName(e)}
	}
	return e.Disk.BootFile
}
