package world

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"path"
	"regexp"
	"strings"
	"time"
)

// UploadRequest is a file that has arrived at a host and is to become a volume.
type UploadRequest struct {
	Storage   string
	Content   string // "iso"
	Filename  string
	Algorithm string // "sha256"; "": no checksum
	Checksum  string // hex
	Data      []byte
}

// Upload copies a file to a storage in a task, which also verifies the
// checksum. A file of that name is replaced.
func (w *World) Upload(user, host string, r UploadRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, "/storage/"+r.Storage, "Datastore.AllocateTemplate"); err != nil {
		return "", err
	}
	s, err := w.storageOn(r.Storage, host)
	if err != nil {
		return "", err
	}
	if s.block() {
		return "", failf("can't upload to storage type '%s'", s.Type)
	}
	if !s.holds(r.Content) {
		return "", failf("storage '%s' does not support '%s' content", r.Storage, r.Content)
	}
	name := regexp.MustCompile(`[^a-zA-Z0-9_.-]`).ReplaceAllString(path.Base(strings.ReplaceAll(r.Filename, `\`, "/")), "_")
	if lower := strings.ToLower(name); r.Content == "iso" && !strings.HasSuffix(lower, ".iso") && !strings.HasSuffix(lower, ".img") {
		return "", BadParam("filename", "wrong file extension")
	}
	if r.Algorithm != "" && newHash(r.Algorithm) == nil {
		return "", BadParam("checksum-algorithm", "value '%s' does not have a value in the enumeration 'md5, sha1, sha224, sha256, sha384, sha512'", r.Algorithm)
	}
	return w.startTask(host, "imgcopy", "", user, func(t *task) error {
		if err := t.begin(taskTime); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.importFile(t, s, host, name, r)
	}), nil
}

func (w *World) importFile(t *task, s *storage, host, name string, r UploadRequest) error {
	t.logf("starting file import from: /var/tmp/pveupload-%x", md5.Sum([]byte(t.UPID)))
	t.logf("target node: %s", host)
	t.logf("target file: %s:%s/%s", s.ID, r.Content, name)
	t.logf("file size is: %d", len(r.Data))
	if r.Algorithm != "" {
		h := newHash(r.Algorithm)
		h.Write(r.Data)
		if got := hex.EncodeToString(h.Sum(nil)); !strings.EqualFold(got, r.Checksum) {
			return fmt.Errorf("checksum mismatch: got '%s' != expect '%s'", got, r.Checksum)
		}
	}
	if !s.room(host, int64(len(r.Data))) {
		return fmt.Errorf("import failed: cp: error writing '%s': No space left on device", name)
	}
	s.putISO(host, name, r.Data)
	t.logf("finished file import successfully")
	return nil
}

// putISO writes a file; one of that name keeps being the same volume with other bytes.
func (s *storage) putISO(host, name string, data []byte) {
	name = "iso/" + name
	v, ok := s.at(host)[name]
	if !ok {
		v = &volume{name: name, content: "iso", format: "iso", media: NewMedia(nil)}
		s.at(host)[name] = v
	}
	v.media.Write(data)
	v.size, v.created = int64(len(data)), time.Now()
}

func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case "md5":
		return md5.New()
	case "sha1":
		return sha1.New()
	case "sha224":
		return sha256.New224()
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	}
	return nil
}
