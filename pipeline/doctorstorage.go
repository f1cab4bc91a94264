package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// storages looks at those for ISOs and those of the nodes' disks, from every
// host where nodes live.
func (d *checkup) storages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	hosts := d.hostsOfNodes()
	if len(hosts) == 0 {
		hosts = hostNames(d.hosts)
	}
	for _, storage := range d.Config.Images.ISO.Storage {
		d.isoStorage(ctx, storage, hosts)
	}
	d.spool()
	for _, use := range d.diskStorages() {
		d.diskStorage(ctx, use)
	}
	d.thinPools()
}

// unseen says that the token may not look at a storage: that is told among the privileges.
func (d *checkup) unseen(storage string) bool {
	return slices.ContainsFunc(d.missing.Lacks, func(l cluster.Lack) bool {
		return l.Privilege == "Datastore.Audit" && (l.At == "/storage" || l.At == "/storage/"+storage)
	})
}

func (d *checkup) isoStorage(ctx context.Context, storage string, hosts []string) {
	what := "ISO storage " + storage
	if d.unseen(storage) {
		d.warn(GroupStorage, what, "", "can't be seen without Datastore.Audit on /storage/%s", storage)
		return
	}
	largest := d.largestISO()
	for _, host := range hosts {
		info, err := d.src.Proxmox.Storage(ctx, host, storage)
		at := what + " on " + host
		switch {
		case err != nil:
			d.fail(GroupStorage, at, err)
		case !slices.Contains(info.Content, "iso"):
			d.refuse(GroupStorage, at, fmt.Sprintf("pvesm set %s --content %s", storage, strings.Join(append(slices.Clone(info.Content), "iso"), ",")),
				"does not take ISOs: its content is %s", strings.Join(info.Content, ", "))
		case !info.Active:
			d.refuse(GroupStorage, at, "see pvesm status on "+host, "is not active there")
		case info.FreeBytes < largest:
			d.refuse(GroupStorage, at, "free space, or name another storage in images.iso.storage", "%s free, but a boot ISO takes %s", size(info.FreeBytes), size(largest))
		default:
			d.ok(GroupStorage, at, "%s free", size(info.FreeBytes))
			d.isosOn(ctx, storage, host)
		}
		if err == nil && info.Shared {
			return // every host sees the same
		}
	}
}

// unbuiltISO is what an ISO takes whose size the lock does not know yet.
const unbuiltISO = 512 << 20

func (d *checkup) largestISO() int64 {
	var largest int64
	for _, e := range d.lock.Schematics {
		largest = max(largest, e.ISO.SizeBytes)
	}
	return cmp.Or(largest, unbuiltISO)
}

// isosOn says which ISOs of the lock are there already. The others are put there
// by publish, or by the roll itself.
func (d *checkup) isosOn(ctx context.Context, storage, host string) {
	for _, name := range d.lock.Names() {
		iso := d.lock.Schematics[name].ISO
		bytes, found, err := d.src.Proxmox.ISO(ctx, host, storage, iso.Name)
		what := fmt.Sprintf("ISO of %s on %s", name, storage)
		switch {
		case err != nil:
			d.fail(GroupStorage, what, err)
		case !found:
			d.ok(GroupStorage, what, "%s is not there yet: a roll delivers it, %s", iso.Name, d.delivery(ctx, name, storage, host))
		case iso.SizeBytes > 0 && bytes != iso.SizeBytes:
			d.warn(GroupStorage, what, "a roll replaces it where no VM uses it; else eject it first",
				"%s has %d bytes, the lock has %d: an upload was cut off", iso.Name, bytes, iso.SizeBytes)
		default:
			d.ok(GroupStorage, what, "%s is there", iso.Name)
		}
	}
}

// delivery says how the ISO of a schematic would get to a storage. The factory is
// asked, through the host, only for what it has built already.
func (d *checkup) delivery(ctx context.Context, name, storage, host string) string {
	asked := d.Config.Images.ISO.Delivery
	if asked == string(images.ByUpload) {
		return "by upload"
	}
	e := d.lock.Schematics[name]
	known := e.ISO.SizeBytes > 0 && d.src.ErrImages == nil
	var why string
	var err error
	if known {
		why, err = images.NoDownload(ctx, d.src.Proxmox, host, storage, d.src.Images.Factory.ISOURL(images.RequestOf(d.lock, e)), e.ISO)
	} else {
		why, err = d.src.Proxmox.MayDownload(ctx, host, storage)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("by upload: %v", err)
	case why == "" && known:
		return host + " downloads it from " + d.Config.Images.Factory
	case why == "":
		return fmt.Sprintf("by download on %s if the factory can be reached from there", host)
	case asked == string(images.DownloadURL):
		return "but not by download-url, as is configured: " + why
	}
	return "by upload: " + why
}

// spool is where the host whose API is asked keeps an upload until it is whole:
// /var/tmp (pve-http-server, APIServer/AnyEvent.pm).
func (d *checkup) spool() {
	for _, h := range d.hosts {
		switch {
		case !h.Entry || len(h.Errs) > 0 && h.SpoolFree == 0:
		case h.SpoolFree < d.largestISO():
			d.refuse(GroupStorage, "upload spool", "free space below /var/tmp there", "%s has %s free on its root filesystem, but a boot ISO takes %s", h.Name, size(h.SpoolFree), size(d.largestISO()))
		default:
			d.ok(GroupStorage, "upload spool", "%s has %s free on its root filesystem", h.Name, size(h.SpoolFree))
		}
	}
}

// diskUse is a storage as nodes on one host use it.
type diskUse struct {
	storage, host string
	system        []int64 // sizes of the system disks on it, largest first
}

func (d *checkup) diskStorages() []diskUse {
	var uses []diskUse
	find := func(storage, host string) *diskUse {
		i := slices.IndexFunc(uses, func(u diskUse) bool { return u.storage == storage && u.host == host })
		if i < 0 {
			uses = append(uses, diskUse{storage: storage, host: host})
			i = len(uses) - 1
		}
		return &uses[i]
	}
	for i, a := range d.res.Nodes {
		for _, storage := range a.Storages() {
			find(storage, a.Host)
		}
		if disk, known := a.SystemDisk(); known {
			u := find(disk.Storage(), a.Host)
			u.system = append(u.system, max(int64(disk.SizeBytes()), int64(d.wanted[i].SystemGiB)<<30))
		}
	}
	for _, u := range uses {
		slices.SortFunc(u.system, func(a, b int64) int { return cmp.Compare(b, a) })
	}
	slices.SortFunc(uses, func(a, b diskUse) int {
		return cmp.Or(strings.Compare(a.storage, b.storage), strings.Compare(a.host, b.host))
	})
	return uses
}

// diskStorage wants room for the new system disks beside the old ones, which
// stay parked. Most storages allocate as data comes, so less is no certain end.
func (d *checkup) diskStorage(ctx context.Context, u diskUse) {
	what := fmt.Sprintf("disk storage %s on %s", u.storage, u.host)
	if d.unseen(u.storage) {
		d.warn(GroupStorage, what, "", "can't be seen without Datastore.Audit on /storage/%s", u.storage)
		return
	}
	info, err := d.src.Proxmox.Storage(ctx, u.host, u.storage)
	atOnce := sum(u.system[:min(len(u.system), max(1, d.Config.Roll.MaxUnavailable.PerHost))])
	i := slices.IndexFunc(d.survey.Storages, func(s cluster.Storage) bool { return s.Name == u.storage })
	const more = "free space, or delete parked system disks of earlier rolls"
	switch {
	case err != nil:
		d.fail(GroupStorage, what, err)
	case !slices.Contains(info.Content, "images"):
		d.refuse(GroupStorage, what, fmt.Sprintf("pvesm set %s --content %s", u.storage, strings.Join(append(slices.Clone(info.Content), "images"), ",")),
			"does not take disks: its content is %s", strings.Join(info.Content, ", "))
	case !info.Active:
		d.refuse(GroupStorage, what, "see pvesm status on "+u.host, "is not active there")
	case i >= 0 && !d.survey.Storages[i].CanReassign():
		d.warn(GroupStorage, what, "move the nodes' disks to another storage", "its type %s can't hand a disk to another VM: nodes on it are upgraded in place", d.survey.Storages[i].Type)
	case info.FreeBytes < atOnce:
		d.refuse(GroupStorage, what, more, "%s free, but the new system disks take %s while the old ones stay parked", size(info.FreeBytes), size(atOnce))
	case info.FreeBytes < sum(u.system):
		d.warn(GroupStorage, what, more, "%s free: not enough to keep the old system disks of all %d nodes there (%s)", size(info.FreeBytes), len(u.system), size(sum(u.system)))
	default:
		d.ok(GroupStorage, what, "%s free, new system disks take %s", size(info.FreeBytes), size(sum(u.system)))
	}
}

// fullPool is how full a thin pool may be: once it has no room left, every disk in it fails.
const fullPool = 0.9

func (d *checkup) thinPools() {
	for _, h := range d.hosts {
		if h.ErrPools != nil && fault.KindOf(h.ErrPools) != fault.Refused {
			d.warn(GroupStorage, "thin pools on "+h.Name, "", "can't be read: %s", h.ErrPools)
		}
		for _, p := range h.ThinPools {
			what := fmt.Sprintf("thin pool %s/%s on %s", p.VG, p.Name, h.Name)
			data, meta := share(p.Used, p.Size), share(p.MetaUsed, p.MetaSize)
			if data > fullPool || meta > fullPool {
				d.warn(GroupStorage, what, "extend it (lvextend, lvextend --poolmetadatasize): a full pool breaks every disk in it", "data %.0f%% full, metadata %.0f%%", 100*data, 100*meta)
				continue
			}
			d.ok(GroupStorage, what, "data %.0f%% full, metadata %.0f%%", 100*data, 100*meta)
		}
	}
}

func share(used, size int64) float64 {
	if size <= 0 {
		return 0
	}
	return float64(used) / float64(size)
}

func sum(sizes []int64) (total int64) {
	for _, s := range sizes {
		total += s
	}
	return total
}

func size(bytes int64) string {
	if bytes < 10<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d GiB", bytes>>30)
}
