package pve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
)

// Upload implements images.Store. It holds no more than a buffer of the ISO in memory.
func (c *Client) Upload(ctx context.Context, u images.Upload) error {
	path := "/nodes/" + url.PathEscape(u.Host) + "/storage/" + url.PathEscape(u.Storage) + "/upload"
	upid, err := c.send(ctx, path, u)
	if err != nil {
		return c.clean(http.MethodPost, path, err)
	}
	return c.finish(ctx, upid, nil)
}

// send uploads and returns the name of the task that checks and stores what was sent.
func (c *Client) send(ctx context.Context, path string, u images.Upload) (upid string, err error) {
	form, err := newForm(u)
	if err != nil {
		return "", err
	}
	bodies := &uploads{form: form, upload: u}
	defer func() { err = errors.Join(err, bodies.close()) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, http.NoBody)
	if err != nil {
		return "", err
	}
	// Proxmox does not take chunked bodies: the length is known beforehand.
	req.ContentLength = int64(len(form.head)) + u.SizeBytes + int64(len(form.tail))
	req.GetBody = bodies.open
	req.Header.Set("Authorization", c.auth)
	req.Header.Set("Content-Type", form.contentType)
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	var answer struct {
		Data string `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", fmt.Errorf("%w: read the answer: %w", cluster.ErrLostAnswer, err)
	}
	return answer.Data, nil
}

// form is the multipart body around the file. Proxmox's parser takes the parts
// in this order only, with the file last and Content-Disposition as the first
// header of each part.
type form struct {
	head, tail  []byte
	contentType string
}

func newForm(u images.Upload) (form, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	fields := [...][2]string{{"content", "iso"}, {"checksum-algorithm", "sha256"}, {"checksum", u.SHA256}}
	for _, f := range fields {
		if err := w.WriteField(f[0], f[1]); err != nil {
			return form{}, err
		}
	}
	if _, err := w.CreateFormFile("filename", u.Name); err != nil {
		return form{}, err
	}
	head := b.Len()
	if err := w.Close(); err != nil {
		return form{}, err
	}
	return form{head: b.Bytes()[:head], tail: b.Bytes()[head:], contentType: w.FormDataContentType()}, nil
}

// uploads are the bodies of one upload's attempts. net/http may go on reading a
// body for a moment after it has returned an answer; close ends that.
type uploads struct {
	form   form
	upload images.Upload

	mu     sync.Mutex
	bodies []*uploadBody
}

func (b *uploads) open() (io.ReadCloser, error) {
	file, err := b.upload.Open()
	if err != nil {
		return nil, err
	}
	whole := &wholeReader{file: io.LimitReader(file, b.upload.SizeBytes), size: b.upload.SizeBytes, progress: b.upload.Progress}
	body := &uploadBody{
		file:   file,
		reader: io.MultiReader(bytes.NewReader(b.form.head), whole, bytes.NewReader(b.form.tail)),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bodies = append(b.bodies, body)
	return body, nil
}

func (b *uploads) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, body := range b.bodies {
		errs = append(errs, body.Close())
	}
	return errors.Join(errs...)
}

// uploadBody is one attempt's body.
type uploadBody struct {
	mu     sync.Mutex
	closed bool
	file   io.Closer
	reader io.Reader
}

func (b *uploadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errors.New("the upload has ended")
	}
	return b.reader.Read(p)
}

func (b *uploadBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	return b.file.Close()
}

// wholeReader reads a file of known size and tells how much has been read.
type wholeReader struct {
	file       io.Reader
	read, size int64
	progress   func(int64)
}

func (r *wholeReader) Read(p []byte) (int, error) {
	n, err := r.file.Read(p)
	r.read += int64(n)
	if n > 0 && r.progress != nil {
		r.progress(r.read)
	}
	if err == io.EOF && r.read < r.size {
		err = fmt.Errorf("the file ends after %d of %d bytes: %w", r.read, r.size, io.ErrUnexpectedEOF)
	}
	return n, err
}
