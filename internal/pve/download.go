package pve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
)

// MayDownload implements images.Store. It checks what API2/Storage/Status.pm,
// download_url, and API2/Nodes.pm, query_url_metadata, check.
func (c *isos) MayDownload(ctx context.Context, host, storage string) (why string, err error) {
	on, node, root := "/storage/"+storage, "/nodes/"+host, "/"
	has := func(path, privilege string) bool {
		held, askErr := c.access.Permissions(ctx, path)
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
func (c *isos) URLSize(ctx context.Context, host, link string) (sizeBytes int64, err error) {
	var meta struct{ Size flexInt }
	query := url.Values{"url": {link}, "verify-certificates": {"1"}}
	err = c.Get(ctx, "/nodes/"+url.PathEscape(host)+"/query-url-metadata?"+query.Encode(), &meta)
	return int64(meta.Size), err
}

// otherContent matches the error of a download whose file, new or existing, does not
// have the requested checksum (Tools.pm, download_file_from_url).
var otherContent = regexp.MustCompile(`^checksum mismatch: got '`)

// Download implements images.Store.
func (c *isos) Download(ctx context.Context, d images.Download) error {
	if err := checkISOName(d.Name); err != nil {
		return err
	}
	err := c.changes.carryOut(ctx, mutation{
		method: http.MethodPost, path: "/nodes/" + url.PathEscape(d.Host) + "/storage/" + url.PathEscape(d.Storage) + "/download-url",
		params: map[string]string{
			"content": "iso", "filename": d.Name, "url": d.URL, "verify-certificates": "1",
			"checksum": d.SHA256, "checksum-algorithm": "sha256",
		},
		worker: worker{d.Host, "download", d.Name},
		// A second download finds the first one's file, or loads the same one.
		repeatable: true,
		look: func(ctx context.Context) (sight, error) {
			size, found, err := c.storages.ISO(ctx, d.Host, d.Storage, d.Name)
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
