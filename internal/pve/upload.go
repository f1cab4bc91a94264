package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// uploadAttempts bounds how often an ISO is sent whose answer is lost.
const uploadAttempts = 3

// Upload implements images.Store. It holds no more than a buffer of the ISO in
// memory. An upload whose answer is lost, and that has come to nothing, is sent
// again: whichever of them Proxmox stores in the end, it stores the same bytes.
func (c *Client) Upload(ctx context.Context, u images.Upload) error {
	if err := checkISOName(u.Name); err != nil {
		return err
	}
	if err := c.mayUpload(ctx, u.Storage); err != nil {
		return err
	}
	// What has this size already says nothing about this upload.
	size, found, err := c.ISO(ctx, u.Host, u.Storage, u.Name)
	if err != nil {
		return err
	}
	shows := !found || size != u.SizeBytes
	path := "/nodes/" + url.PathEscape(u.Host) + "/storage/" + url.PathEscape(u.Storage) + "/upload"
	for attempt := 1; ; attempt++ {
		sent := time.Now()
		upid, whole, err := c.sendISO(ctx, path, u)
		if err == nil {
			return c.finish(ctx, upid, nil)
		}
		err = c.clean(http.MethodPost, path, err)
		if !errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil {
			return err
		}
		again := true // of a part nothing comes: the server waits for Content-Length bytes
		if whole {
			again, err = c.findUpload(ctx, u, shows, sent, err)
		}
		if err == nil || !again || attempt == uploadAttempts {
			return err
		}
	}
}

// mayUpload refuses what Proxmox would refuse, in a way that it could not be heard:
// it looks at that one privilege before it reads the file and answers three
// seconds later, but closes a connection on which more than half a megabyte has
// arrived meanwhile, and takes what arrives on one that it knows already for a bad
// request (pve-manager, HTTPServer.pm, auth_handler; pve-http-server, AnyEvent.pm).
func (c *Client) mayUpload(ctx context.Context, storage string) error {
	const privilege = "Datastore.AllocateTemplate"
	path := "/storage/" + storage
	held, err := c.Permissions(ctx, path)
	if err != nil {
		return err
	}
	if _, may := held[privilege]; !may {
		return c.hintPrivilege(fault.Refusedf("upload to storage %q: 403 Permission check failed (%s, %s): nothing was sent", storage, path, privilege), path, privilege)
	}
	return nil
}

// isoName is what Proxmox leaves as it is (pve-storage, Storage.pm,
// normalize_content_filename) and takes for an ISO, but for its length: a bound of
// the pattern's own would be compiled a thousand times as long, at every start.
var isoName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+\.iso$`)

// maxISOName is what a name may have in a directory.
const maxISOName = 255

// checkISOName refuses names under which Proxmox would not store the file.
func checkISOName(name string) error {
	if len(name) > maxISOName || !isoName.MatchString(name) {
		return fault.Configf("%q can't be the name of an ISO on Proxmox: it takes letters, digits, _ . - and the ending .iso, %d characters in all", name, maxISOName)
	}
	return nil
}

// sendISO uploads and returns the name of the task that checks and stores what
// was sent. whole says whether the file was sent to its end.
func (c *Client) sendISO(ctx context.Context, path string, u images.Upload) (upid string, whole bool, err error) {
	form, err := newForm(u)
	if err != nil {
		return "", false, err
	}
	bodies := &uploads{form: form, upload: u}
	defer func() {
		whole = bodies.whole()
		err = errors.Join(err, bodies.close())
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, http.NoBody)
	if err != nil {
		return "", false, err
	}
	// Proxmox does not take chunked bodies: the length is known beforehand.
	req.ContentLength = int64(len(form.head)) + u.SizeBytes + int64(len(form.tail))
	req.GetBody = bodies.open
	req.Header.Set("Authorization", c.auth)
	req.Header.Set("Content-Type", form.contentType)
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return "", false, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	var answer struct {
		Data string `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", false, fmt.Errorf("%w: read the answer: %w", cluster.ErrLostAnswer, err)
	}
	return answer.Data, false, nil
}

// findUpload learns what became of an upload whose answer was lost. Its task
// runs on the node that took it, whichever that was: an upload is not handed on
// to the host that it is for. again says that nothing has come of it; shows that
// a file of the right size was not there before.
func (c *Client) findUpload(ctx context.Context, u images.Upload, shows bool, sent time.Time, lost error) (again bool, err error) {
	upid, stored := "", false
	var since time.Time // when the world first answered
	w := wait.For{Name: "find out whether the upload arrived", Every: c.poll, Timeout: searchTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var err error
		if upid, err = c.uploadTask(ctx, sent); err != nil || upid != "" {
			return upid != "", "", stopOnAnswer(err)
		}
		size, found, err := c.ISO(ctx, u.Host, u.Storage, u.Name)
		if err != nil {
			return false, "", stopOnAnswer(err)
		}
		if since.IsZero() {
			since = time.Now()
		}
		stored = shows && found && size == u.SizeBytes
		return stored || time.Since(since) >= lateness, "neither a task nor the file", nil
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("%w; %w", lost, err)
	case upid != "":
		return false, c.finish(ctx, upid, nil)
	case stored:
		return false, nil
	}
	return true, fmt.Errorf("%w; since then neither a task nor the file has shown", lost)
}

// uploadTask finds the task of an upload that was sent at that time, on any host; "" if there is none.
func (c *Client) uploadTask(ctx context.Context, sent time.Time) (upid string, err error) {
	online, _, err := c.Nodes(ctx)
	if err != nil {
		return "", err
	}
	for _, host := range online {
		if upid, err = c.startedSince(ctx, worker{host: host, kind: "imgcopy"}, sent); err != nil || upid != "" {
			return upid, err
		}
	}
	return "", nil
}
