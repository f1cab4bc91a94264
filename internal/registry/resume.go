package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// An interrupted download is resumed this often, after pauses that double.
const (
	maxResumes  = 6
	resumePause = time.Second
)

// resumable is the size of an answer that can be resumed; 0 if it cannot. Blobs may
// come in pieces, because their readers check the digest; what a tag names may have
// changed meanwhile.
func resumable(req *http.Request, resp *http.Response) int64 {
	if req.Method != http.MethodGet || resp.StatusCode != http.StatusOK || resp.Uncompressed ||
		strings.Contains(req.URL.Path, "/manifests/") || req.Header.Get("Range") != "" {
		return 0
	}
	return max(resp.ContentLength, 0)
}

// download is the body of an answer.
type download struct {
	stallGuard stallGuard
	req        *http.Request
	watch      *watch
	body       io.ReadCloser
	size       int64 // 0: it cannot be resumed
	done       int64
	resumes    int
}

func (d *download) Read(p []byte) (int, error) {
	for {
		d.watch.begin(stallAfter, &stalledError{what: "no data came", after: stallAfter, again: true})
		n, err := d.body.Read(p)
		d.watch.end()
		d.done += int64(n)
		if err == nil || errors.Is(err, io.EOF) {
			return n, err
		}
		err = d.watch.explain(d.watch.ctx, err)
		if n > 0 {
			// What has come is returned first; the next Read meets the error again.
			return n, nil
		}
		if d.done >= d.size || d.req.Context().Err() != nil {
			return 0, err
		}
		if again := d.resume(); again != nil {
			return 0, fmt.Errorf("%w; asked for the rest: %w", err, again)
		}
	}
}

// resume asks for the rest, until it comes or a retry is pointless.
func (d *download) resume() error {
	d.watch.end()
	d.watch.cancel(nil)
	// An interrupted body has nothing more to say.
	_ = d.body.Close()
	err := errors.New("it broke off too often")
	for d.resumes < maxResumes {
		select {
		case <-time.After(resumePause << d.resumes):
		case <-d.req.Context().Done():
			return d.req.Context().Err()
		}
		d.resumes++
		var again bool
		if again, err = d.rest(); !again {
			return err
		}
	}
	return err
}

// rest asks once; again says that a retry makes sense.
func (d *download) rest() (again bool, err error) {
	req := d.req.Clone(d.req.Context())
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", d.done, d.size-1))
	resp, w, err := d.stallGuard.send(req)
	if err != nil {
		return d.req.Context().Err() == nil, err
	}
	want := fmt.Sprintf("bytes %d-%d/%d", d.done, d.size-1, d.size)
	if got := resp.Header.Get("Content-Range"); resp.StatusCode != http.StatusPartialContent || got != want {
		w.cancel(nil)
		// It is not what was requested, whatever it says.
		_ = resp.Body.Close()
		return resp.StatusCode >= http.StatusInternalServerError,
			fmt.Errorf("the registry answers %q to the request for the rest, after %d of %d bytes", resp.Status, d.done, d.size)
	}
	d.watch, d.body = w, resp.Body
	return false, nil
}

func (d *download) Close() error {
	d.watch.end()
	defer d.watch.cancel(nil)
	return d.body.Close()
}
