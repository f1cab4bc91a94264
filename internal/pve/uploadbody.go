package pve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"slices"
	"sync"

	"github.com/recast-sh/recast/images"
)

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
	fields := [...][2]string{{"content", contentOf(u.Name)}, {"checksum-algorithm", "sha256"}, {"checksum", u.SHA256}}
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

// uploads holds the bodies of one upload's attempts. net/http may still read a body
// for a moment after it has returned an answer; close ends that.
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
	content := &wholeReader{file: io.LimitReader(file, b.upload.SizeBytes), size: b.upload.SizeBytes, progress: b.upload.Progress}
	body := &uploadBody{
		file: file, content: content,
		reader: io.MultiReader(bytes.NewReader(b.form.head), content, bytes.NewReader(b.form.tail)),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bodies = append(b.bodies, body)
	return body, nil
}

// whole reports whether any attempt has read its file to the end.
func (b *uploads) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.bodies, func(body *uploadBody) bool {
		body.mu.Lock()
		defer body.mu.Unlock()
		return body.content.read == body.content.size
	})
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
	mu      sync.Mutex
	closed  bool
	file    io.Closer
	content *wholeReader
	reader  io.Reader
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

// wholeReader reads a file of known size and reports how much has been read.
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
