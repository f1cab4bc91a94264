package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
)

// ISOs implements images.Shelf. Unfinished downloads are not included: they are
// called <name>.iso.tmp_dwnl.<pid>, and Proxmox does not list them as ISOs.
func (c *Client) ISOs(ctx context.Context, host, storage string) ([]images.StoredISO, error) {
	return c.storedFiles(ctx, host, storage, isoContent)
}

// DiskImages implements images.Shelf.
func (c *Client) DiskImages(ctx context.Context, host, storage string) ([]images.StoredISO, error) {
	return c.storedFiles(ctx, host, storage, importContent)
}

func (c *Client) storedFiles(ctx context.Context, host, storage, content string) ([]images.StoredISO, error) {
	var rows []struct {
		Volid string
		Size  json.Number
		CTime flexInt
	}
	if err := c.conn.Get(ctx, contentPath(host, storage)+"?content="+content, &rows); err != nil {
		return nil, err
	}
	var isos []images.StoredISO
	for _, r := range rows {
		name, is := strings.CutPrefix(r.Volid, storage+":"+content+"/")
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
func (c *Client) DeleteISO(ctx context.Context, iso images.StoredISO) error {
	content := contentOf(iso.Name)
	volid := iso.Storage + ":" + content + "/" + iso.Name
	err := c.changes.carryOut(ctx, mutation{
		method: http.MethodDelete, path: contentPath(iso.Host, iso.Storage) + "/" + url.PathEscape(volid),
		worker: worker{iso.Host, "imgdel", iso.Storage}, repeatable: true,
		look: func(ctx context.Context) (sight, error) {
			_, found, err := c.storedFile(ctx, iso.Host, iso.Storage, content, iso.Name)
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

// MayDownload implements images.Store. It checks what API2/Storage/Status.pm,
// download_url, and API2/Nodes.pm, query_url_metadata, check.
func (c *Client) MayDownload(ctx context.Context, host, storage string) (why string, err error) {
	on, node, root := "/storage/"+storage, "/nodes/"+host, "/"
	has := func(path, privilege string) bool {
		held, askErr := c.Permissions(ctx, path)
		err = errors.Join(err, askErr)
		_, is := held[privilege]
		return is
	}
	switch {
	case !has(on, "Datastore.AllocateTemplate"):
		why = "the token has no Datastore.AllocateTemplate on " + on
	case !has(node, "Sys.AccessNetwork") && !(has(root, "Sys.Audit") && has(root, "Sys.Modify")):
		why = "the token has no Sys.AccessNetwork on " + node
	}
	return why, err
}

// URLSize implements images.Store.
func (c *Client) URLSize(ctx context.Context, host, link string) (sizeBytes int64, err error) {
	var meta struct{ Size flexInt }
	query := url.Values{"url": {link}, "verify-certificates": {"1"}}
	err = c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/query-url-metadata?"+query.Encode(), &meta)
	return int64(meta.Size), err
}

// otherContent matches the error of a download whose file, new or existing, does not
// have the requested checksum (Tools.pm, download_file_from_url).
var otherContent = regexp.MustCompile(`^checksum mismatch: got '`)

// Download implements images.Store.
func (c *Client) Download(ctx context.Context, d images.Download) error {
	if err := checkFileName(d.Name); err != nil {
		return err
	}
	err := c.changes.carryOut(ctx, mutation{
		method: http.MethodPost, path: "/nodes/" + url.PathEscape(d.Host) + "/storage/" + url.PathEscape(d.Storage) + "/download-url",
		params: map[string]string{
			"content": contentOf(d.Name), "filename": d.Name, "url": d.URL, "verify-certificates": "1",
			"checksum": d.SHA256, "checksum-algorithm": "sha256",
		},
		worker: worker{d.Host, "download", d.Name},
		// A second download finds the first one's file, or loads the same one.
		repeatable: true,
		look: func(ctx context.Context) (sight, error) {
			size, found, err := c.storedFile(ctx, d.Host, d.Storage, contentOf(d.Name), d.Name)
			if err == nil && found && size == d.SizeBytes {
				return sight{state: reached, what: d.Name + " is there"}, nil
			}
			return sight{state: untouched, what: d.Name + " is not there"}, err
		},
	})
	if e, ok := errors.AsType[*api.TaskError](err); ok && otherContent.MatchString(e.Exit) {
		return fmt.Errorf("%w: %w", images.ErrOtherContent, err)
	}
	return err
}
