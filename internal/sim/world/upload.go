package world

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"regexp"
	"strings"
	"time"
)

// UploadRequest is a file on a host that is to become a volume.
type UploadRequest struct {
	Storage   string
	Content   string // "iso", "vztmpl" or "import"
	Filename  string
	Algorithm string // "sha256"; "": no checksum
	Checksum  string // hex
	Spool     *Spool // nil: there is no file. The worker closes it
}

// Upload copies a file to a storage in a task, which also verifies the checksum and
// overwrites a file of that name. The task runs on entry, the host that received the file;
// target is the host whose storage gets it.
func (w *World) Upload(user, entry, target string, r UploadRequest) (upid string, err error) {
	defer func() {
		if err != nil && r.Spool != nil {
			r.Spool.Close()
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.storageOn(r.Storage, target)
	if err != nil {
		return "", err
	}
	if s.Path() == "" {
		return "", failf("can't upload to storage type '%s'", s.Type)
	}
	if r.Spool == nil {
		return "", failf("missing temporary file name")
	}
	name, err := contentName(r.Content, r.Filename)
	if err != nil {
		return "", err
	}
	if !s.holds(r.Content) {
		return "", failf("storage '%s' does not support '%s' content", r.Storage, r.Content)
	}
	if err := w.reach(s, entry, target); err != nil {
		return "", err
	}
	return w.startTask(entry, "imgcopy", "", user, func(t *task) error {
		defer r.Spool.Close()
		if err := t.begin(taskTime); err != nil {
			return err
		}
		return w.importFile(t, s, target, name, r)
	}), nil
}

// reach activates the target storage, on another host with ssh.
func (w *World) reach(s *storage, entry, target string) error {
	if entry == target {
		return s.activate(target)
	}
	if w.down[target] || s.offline[target] {
		return failf("can't activate storage '%s' on node '%s': command '/usr/bin/ssh -- /usr/sbin/pvesm status --storage %s' failed: exit code 255",
			s.ID, target, s.ID)
	}
	return nil
}

// importFile is the worker of Storage/Status.pm: the copy is not atomic, and a failed copy
// removes the previous file.
func (w *World) importFile(t *task, s *storage, host, name string, r UploadRequest) error {
	t.printf("starting file import from: %s", r.Spool.Name)
	if r.Algorithm != "" {
		got, err := hexDigest(r.Algorithm, r.Spool.media.Open())
		if err != nil {
			return err
		}
		if !strings.EqualFold(got, r.Checksum) {
			t.printf("calculating checksum...")
			return fmt.Errorf("checksum mismatch: got '%s' != expect '%s'", got, r.Checksum)
		}
		t.printf("calculating checksum...OK, checksum verified")
	}
	if err := checkImage(r.Content, name, r.Spool.Name, r.Spool.media); err != nil {
		return err
	}
	path, size := s.filePath(name), r.Spool.Size()
	t.printf("target node: %s", host)
	t.printf("target file: %s", path)
	t.printf("file size is: %d", size)
	t.printf("command: cp -- %s %s", r.Spool.Name, path)
	w.mu.Lock()
	v := s.put(host, name)
	v.media.Write(nil)
	v.size = 0
	if !s.room(host, size) {
		delete(s.at(host), name)
		w.mu.Unlock()
		return fmt.Errorf("import failed: cp: error writing '%s': No space left on device", path)
	}
	v.size = size / 2
	w.mu.Unlock()
	err := t.delay(copyTime(size))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !t.killed {
		delete(s.at(host), name)
		return fmt.Errorf("import failed: %w", err)
	}
	if err != nil {
		return err
	}
	v.media.replace(r.Spool.media)
	v.size, v.created = size, w.now(host)
	t.logf("finished file import successfully")
	return nil
}

// copyTime is how long writing a file to a disk takes.
func copyTime(size int64) time.Duration {
	return time.Duration(float64(size) / float64(gib) * float64(time.Second))
}

// contentName is the name of a file's volume: normalize_content_filename of Storage.pm,
// and the extensions that each kind of content may have.
func contentName(content, filename string) (string, error) {
	name := filename[strings.LastIndexAny(filename, `/\`)+1:]
	clean := []byte(name)
	for i, c := range clean {
		if !regexp.MustCompile(`[a-zA-Z0-9_.-]`).Match([]byte{c}) {
			clean[i] = '_'
		}
	}
	name = string(clean)
	for kind, rule := range map[string]struct{ pattern, problem string }{
		"iso":    {`(?i).\.(iso|img)$`, "wrong file extension"},
		"vztmpl": {`(?i).\.tar\.(gz|xz|zst|bz2)$`, "wrong file extension"},
		"import": {`.\.(ova|qcow2|raw|vmdk)$`, "invalid filename or wrong extension"},
	} {
		if kind == content && !regexp.MustCompile(rule.pattern).MatchString(name) {
			return "", BadParam("filename", "%s", rule.problem)
		}
	}
	return content + "/" + name, nil
}

// put finds or makes a file: an overwritten file stays the same volume.
func (s *storage) put(host, name string) *volume {
	v, ok := s.at(host)[name]
	if !ok {
		content, file, _ := strings.Cut(name, "/")
		format := file[strings.LastIndex(file, ".")+1:]
		if content == "iso" {
			format = "iso" // also for .img files
		}
		v = &volume{name: name, content: content, format: format, media: NewMedia(nil), created: time.Now()}
		s.at(host)[name] = v
	}
	return v
}

// putISO writes an ISO at once.
func (s *storage) putISO(host, name string, data []byte) {
	v := s.put(host, "iso/"+name)
	v.media.Write(data)
	v.size, v.created = int64(len(data)), time.Now()
}

// hexDigest is a checksum as Proxmox writes it.
func hexDigest(algorithm string, r io.Reader) (string, error) {
	h := newHash(algorithm)
	if h == nil {
		return "", fmt.Errorf("unknown algorithm '%s'", algorithm)
	}
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
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
