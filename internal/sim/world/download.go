package world

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// DownloadRequest asks a host to fetch a file.
type DownloadRequest struct {
	Storage   string
	Content   string // "iso", "vztmpl" or "import"
	Filename  string
	URL       string
	Algorithm string // "sha256"; "": no checksum
	Checksum  string // hex
	Insecure  bool   // certificates are not verified
}

// Download fetches a file to a storage in a task. It never overwrites a file.
func (w *World) Download(user, host string, r DownloadRequest) (upid string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.storageOn(r.Storage, host)
	if err != nil {
		return "", err
	}
	if s.Path() == "" {
		return "", failf("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if !s.holds(r.Content) {
		return "", failf("storage '%s' is not configured for content-type '%s'", r.Storage, r.Content)
	}
	name, err := contentName(r.Content, r.Filename)
	if err != nil {
		return "", err
	}
	if err := s.activate(host); err != nil {
		return "", err
	}
	id := name[strings.Index(name, "/")+1:]
	return w.startTask(host, "download", id, user, func(t *task) error {
		if err := t.begin(taskTime); err != nil {
			return err
		}
		return w.download(t, s, host, name, r)
	}), nil
}

// download is download_file_from_url of pve-common's Tools.pm.
func (w *World) download(t *task, s *storage, host, name string, r DownloadRequest) error {
	path := s.filePath(name)
	t.printf("downloading %s to %s", r.URL, path)
	w.mu.Lock()
	there := s.at(host)[name]
	w.mu.Unlock()
	if there != nil {
		return checkExisting(t, there, path, r)
	}
	partial := fmt.Sprintf("%s.tmp_dwnl.%d", name, t.PID)
	err := w.fetchTo(t, s, host, partial, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if !t.killed { // after kill -9 nothing cleans up
			delete(s.at(host), partial)
		}
		return err
	}
	got := s.at(host)[partial]
	delete(s.at(host), partial)
	v := s.put(host, name)
	v.media, v.size, v.created = got.media, got.size, w.now(host)
	t.logf("download of '%s' to '%s' finished", r.URL, path)
	return nil
}

func checkExisting(t *task, there *volume, path string, r DownloadRequest) error {
	if r.Algorithm == "" {
		return fmt.Errorf("refusing to override existing file '%s'", path)
	}
	got, err := hexDigest(r.Algorithm, there.media.Open())
	if err != nil {
		return err
	}
	if !strings.EqualFold(got, r.Checksum) {
		t.printf("calculating checksum of existing file...")
		return fmt.Errorf("checksum mismatch: got '%s' != expect '%s', aborting", got, r.Checksum)
	}
	t.printf("calculating checksum of existing file...OK, got correct file already, no need to download")
	return nil
}

// fetchTo downloads into a hidden file and verifies it.
func (w *World) fetchTo(t *task, s *storage, host, partial string, r DownloadRequest) error {
	w.mu.Lock()
	v := s.put(host, partial)
	v.content = ""
	w.mu.Unlock()
	file := &Spool{Name: s.filePath(partial), media: v.media, room: func(more int64) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !s.room(host, more) {
			return false
		}
		v.size += more
		return true
	}}
	if err := w.wget(t, host, r, file); err != nil {
		return fmt.Errorf("download failed: %w", err)
	}
	if err := t.delay(copyTime(file.Size())); err != nil {
		return fmt.Errorf("download failed: %w", err)
	}
	if err := verify(t, file.media, r); err != nil {
		return err
	}
	name, _, _ := strings.Cut(partial, ".tmp_dwnl")
	if err := checkImage(r.Content, name, file.Name, file.media); err != nil {
		return fmt.Errorf("failed to verify file: %w", err)
	}
	return nil
}

func verify(t *task, m *Media, r DownloadRequest) error {
	if r.Algorithm == "" {
		return nil
	}
	got, err := hexDigest(r.Algorithm, m.Open())
	if err != nil {
		return err
	}
	if !strings.EqualFold(got, r.Checksum) {
		t.printf("calculating checksum...")
		return fmt.Errorf("checksum mismatch: got '%s' != expect '%s'", got, r.Checksum)
	}
	t.printf("calculating checksum...OK, checksum verified")
	return nil
}

// wget downloads a file; the task's error is wget's last line.
func (w *World) wget(t *task, host string, r DownloadRequest, to *Spool) error {
	res, done, err := w.fetch(webRequest{host: host, method: http.MethodGet, url: r.URL, insecure: r.Insecure, stop: t.stop})
	if err == nil {
		defer done()
		defer func() { _ = res.Body.Close() }() // read to the end already
		if res.StatusCode != http.StatusOK {
			_, words, _ := strings.Cut(res.Status, " ")
			return failf("%s ERROR %d: %s.", w.Clock(host).Format(time.DateTime), res.StatusCode, words)
		}
		_, err = io.Copy(to, res.Body)
	}
	select {
	case <-t.stop:
		return errInterrupted
	case <-w.done:
		return ErrClosed
	default:
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC):
		return failf("Cannot write to '%s' (No space left on device).", to.Name)
	}
	return failf("failed: %s.", reason(err))
}
