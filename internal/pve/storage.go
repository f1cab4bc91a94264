package pve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
)

// storages reads storages and the volumes on them.
type storages struct{ *api.Conn }

// Storage implements images.Store.
func (c *storages) Storage(ctx context.Context, host, storage string) (images.StorageInfo, error) {
	var rows []struct {
		Storage, Content        string
		Enabled, Active, Shared json.RawMessage
		Avail                   json.Number
	}
	if err := c.Get(ctx, "/nodes/"+url.PathEscape(host)+"/storage", &rows); err != nil {
		return images.StorageInfo{}, err
	}
	// Storages of other hosts and disabled ones are listed too (Storage.pm, storage_info).
	for _, s := range rows {
		if s.Storage == storage && toBool(s.Enabled) {
			content := strings.FieldsFunc(s.Content, func(r rune) bool { return r == ',' || r == ' ' })
			return images.StorageInfo{Active: toBool(s.Active), Shared: toBool(s.Shared), Content: content, FreeBytes: bytesOf(s.Avail)}, nil
		}
	}
	err := fmt.Errorf("storage %q on %s: %w", storage, host, images.ErrNoStorage)
	return images.StorageInfo{}, fault.WithHint(fault.StorageUnusable.Of(err), "see /etc/pve/storage.cfg: it may be disabled, or for other nodes than %s; the token needs Datastore.Audit on /storage/%s to see it", host, storage)
}

// ISO implements images.Store.
func (c *storages) ISO(ctx context.Context, host, storage, name string) (sizeBytes int64, found bool, err error) {
	v, found, err := c.volume(ctx, host, storage+":iso/"+name)
	if !found || err != nil {
		return 0, false, err
	}
	size, err := v.Size.Int64()
	if err != nil {
		return 0, false, fmt.Errorf("size of %s: %w", v.Volid, err)
	}
	return size, true, nil
}

// HasVolume implements cluster.Inventory.
func (c *storages) HasVolume(ctx context.Context, host, volid string) (bool, error) {
	_, found, err := c.volume(ctx, host, volid)
	return found, err
}

// OwnedVolumes implements cluster.Inventory. Proxmox lists only volumes of VMs
// that the token may see.
func (c *storages) OwnedVolumes(ctx context.Context, host, storage string, owner cluster.VMID) ([]string, error) {
	var rows []volumeRow
	if err := c.Get(ctx, contentPath(host, storage)+fmt.Sprintf("?content=images&vmid=%d", owner), &rows); err != nil {
		return nil, err
	}
	var volids []string
	for _, r := range rows {
		volids = append(volids, r.Volid)
	}
	slices.Sort(volids)
	return volids, nil
}

func contentPath(host, storage string) string {
	return "/nodes/" + url.PathEscape(host) + "/storage/" + url.PathEscape(storage) + "/content"
}

// volumeRow is a volume in a storage's listing.
type volumeRow struct {
	Volid string      `json:"volid"`
	Size  json.Number `json:"size"`
}

// volume looks a volume up in its storage's listing. Proxmox lists disks only of
// VMs that the token may see.
func (c *storages) volume(ctx context.Context, host, volid string) (volumeRow, bool, error) {
	storage, name, ok := strings.Cut(volid, ":")
	if !ok || storage == "" || name == "" {
		return volumeRow{}, false, fmt.Errorf("%q is not the name of a volume", volid)
	}
	path := contentPath(host, storage)
	if strings.HasPrefix(name, "iso/") {
		path += "?content=iso"
	}
	var rows []volumeRow
	if err := c.Get(ctx, path, &rows); err != nil {
		return volumeRow{}, false, err
	}
	i := slices.IndexFunc(rows, func(v volumeRow) bool { return v.Volid == volid })
	if i < 0 {
		return volumeRow{}, false, nil
	}
	return rows[i], true, nil
}
