package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// target is a place that needs an ISO.
type target struct {
	host    string // for a shared storage: the host that receives the upload
	storage string
	info    StorageInfo
	wrong   bool // a file of the ISO's name and of another size is there
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

// targets are the places for the ISOs of VMs on these hosts: a shared storage once,
// a local one on each host. All problems with the storages are reported at once.
func targets(ctx context.Context, store Store, storages, hosts []string) ([]target, error) {
	hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	var list []target
	var errs []error
	served := map[string]bool{}
	for _, storage := range storages {
		on, err := lookAt(ctx, store, storage, hosts)
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
				fault.StorageUnusable.Configf("no storage for ISOs on host %s: it has none of %q", host, storages),
				"name a storage of that host in images.iso.storage"))
		}
	}
	return list, errors.Join(errs...)
}

// lookAt returns the storage as each host that has it sees it.
func lookAt(ctx context.Context, store Store, storage string, hosts []string) ([]target, error) {
	var list []target
	for _, host := range hosts {
		info, err := store.Storage(ctx, host, storage)
		if errors.Is(err, ErrNoStorage) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at storage %q on %s: %w", storage, host, err)
		}
		if !slices.Contains(info.Content, "iso") {
			return nil, fault.WithHint(
				fault.StorageUnusable.Configf("storage %q does not take ISOs: its content is %q", storage, info.Content),
				"allow the content type with `pvesm set %s --content …,iso`, or name another storage in images.iso.storage", storage)
		}
		if !info.Active {
			return nil, fault.WithHint(fault.StorageUnusable.Errorf("storage %q is not active on %s", storage, host),
				"see `pvesm status --storage %s` on %s", storage, host)
		}
		list = append(list, target{host: host, storage: storage, info: info})
	}
	if len(list) == 0 {
		return nil, fault.WithHint(fault.StorageUnusable.Configf("storage %q is unknown: there is none of that name on %s", storage, strings.Join(hosts, ", ")),
			"`pvesm status --content iso` lists what images.iso.storage can name")
	}
	return list, nil
}
