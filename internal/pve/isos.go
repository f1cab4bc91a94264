package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
)

// isos keeps ISOs on storages.
type isos struct {
	*api.Conn
	access   *access
	hosts    *hosts
	storages *storages
	tasks    *tasks
	changes  *changer
}

// ISOs implements images.Shelf. Unfinished downloads are not included: they are
// called <name>.iso.tmp_dwnl.<pid>, and Proxmox does not list them as ISOs.
func (c *isos) ISOs(ctx context.Context, host, storage string) ([]images.StoredISO, error) {
	var rows []struct {
		Volid string
		Size  json.Number
		CTime flexInt
	}
	if err := c.Get(ctx, contentPath(host, storage)+"?content=iso", &rows); err != nil {
		return nil, err
	}
	var isos []images.StoredISO
	for _, r := range rows {
		name, is := strings.CutPrefix(r.Volid, storage+":iso/")
		if !is {
			continue
		}
		size, err := r.Size.Int64()
		if err != nil {
			return nil, fmt.Errorf("size of %s: %w", r.Volid, err)
		}
		iso := images.StoredISO{Host: host, Storage: storage, Name: name, SizeBytes: size}
		if r.CTime > 0 {
			iso.Changed = time.Unix(int64(r.CTime), 0).UTC()
		}
		isos = append(isos, iso)
	}
	slices.SortFunc(isos, func(a, b images.StoredISO) int { return cmp.Compare(a.Name, b.Name) })
	return isos, nil
}

// DeleteISO implements images.Shelf. Proxmox's task also succeeds if the file does
// not exist.
func (c *isos) DeleteISO(ctx context.Context, iso images.StoredISO) error {
	volid := iso.Storage + ":iso/" + iso.Name
	err := c.changes.carryOut(ctx, mutation{
		method: http.MethodDelete, path: contentPath(iso.Host, iso.Storage) + "/" + url.PathEscape(volid),
		worker: worker{iso.Host, "imgdel", iso.Storage}, repeatable: true,
		look: func(ctx context.Context) (sight, error) {
			_, found, err := c.storages.ISO(ctx, iso.Host, iso.Storage, iso.Name)
			if err == nil && !found {
				return sight{state: reached, what: volid + " is gone"}, nil
			}
			return sight{state: untouched, what: volid + " is there"}, err
		},
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", iso, err)
	}
	return nil
}
