package world

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
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

// Upload copies a file to a storage in a task, which also verifies the checksum and overwrites a file of that name. The
// task runs on entry, the host that received the file; target is the host whose storage gets it.
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

// reach activates the target storage; on another host by ssh.
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

// importFile is the worker of Storage/Status.pm: the copy is not atomic, and a failed copy removes the previous file
// of that name.
func (w *World) importFile(t *task, s *storage, host, name string, r UploadRequest) error {
	t.printf("starting file import from: %s", r.Spool.Name)
	if err := verify(t, r.Spool.media, r.Algorithm, r.Checksum); err != nil {
		return err
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

// copyTime returns how long writing a file to a disk takes.
func copyTime(size int64) time.Duration {
	return time.Duration(float64(size) / float64(gib) * float64(time.Second))
}

// contentName returns the name of a file's volume, by normalize_content_filename of Storage.pm and by the extensions
// that each kind of content may have.
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

// hexDigest returns a checksum as Proxmox writes it.
func hexDigest(algorithm string, r io.Reader) (string, error) {
	made := map[string]func() hash.Hash{
		"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
	}[algorithm]
	if made == nil {
		return "", fmt.Errorf("unknown algorithm '%s'", algorithm)
	}
	h := made()
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

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

// download does the work of download_file_from_url of pve-common's Tools.pm.
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
	if err := verify(t, file.media, r.Algorithm, r.Checksum); err != nil {
		return err
	}
	name, _, _ := strings.Cut(partial, ".tmp_dwnl")
	if err := checkImage(r.Content, name, file.Name, file.media); err != nil {
		return fmt.Errorf("failed to verify file: %w", err)
	}
	return nil
}

func verify(t *task, m *Media, algorithm, checksum string) error {
	if algorithm == "" {
		return nil
	}
	got, err := hexDigest(algorithm, m.Open())
	if err != nil {
		return err
	}
	if !strings.EqualFold(got, checksum) {
		t.printf("calculating checksum...")
		return fmt.Errorf("checksum mismatch: got '%s' != expect '%s'", got, checksum)
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

// URLMetadata is what a web server says about a file without sending the file.
type URLMetadata struct {
	Filename, Mimetype string // "": unknown
	Size               int64  // 0: unknown
}

// lwpTimeout is LWP::UserAgent's timeout.
const lwpTimeout = 3 * time.Minute

// QueryURLMetadata does the work of query_url_metadata of API2/Nodes.pm: the host sends a HEAD request.
func (w *World) QueryURLMetadata(host, target string, insecure bool) (URLMetadata, error) {
	res, done, err := w.fetch(webRequest{host: host, method: http.MethodHead, url: target, insecure: insecure, patience: lwpTimeout})
	if err != nil {
		// LWP turns a failed connection into a status of its own.
		return URLMetadata{}, failf("invalid server response: '500 Can't connect to %s (%s)'", address(target), reason(err))
	}
	defer done()
	defer func() { _ = res.Body.Close() }() // empty for HEAD
	if res.StatusCode != http.StatusOK {
		return URLMetadata{}, failf("invalid server response: '%s'", res.Status)
	}
	out := URLMetadata{Size: max(0, res.ContentLength)}
	out.Mimetype, _, _ = strings.Cut(res.Header.Get("Content-Type"), ";")
	named := regexp.MustCompile(`filename="([^"]*)"|filename=([^;]*)`).FindStringSubmatch(res.Header.Get("Content-Disposition"))
	if named == nil {
		named = regexp.MustCompile(`^[^?]+/([^?/]*)()(?:\?.*)?$`).FindStringSubmatch(target)
	}
	if named != nil {
		out.Filename = named[1] + named[2]
	}
	return out, nil
}

// address returns the host and port of a URL.
func address(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return fmt.Sprintf("%s:%s", u.Hostname(), port)
}

// DialFunc connects to "host:port", as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// SetDial sets how hosts connect outside of the datacentre. Without SetDial, hosts can't connect outside.
func (w *World) SetDial(dial DialFunc) { w.set(func() { w.dial = dial }) }

// SetOutbound sets whether a host can connect outside of the datacentre.
func (w *World) SetOutbound(host string, open bool) { w.set(func() { w.isolated[host] = !open }) }

// webRequest is a host's request to a web server.
type webRequest struct {
	host, method, url string
	insecure          bool            // certificates are not verified
	stop              <-chan struct{} // closed to cancel
	patience          time.Duration   // timeout for the answer; 0: none
}

// fetch sends a request. The caller closes the body and calls done.
func (w *World) fetch(r webRequest) (res *http.Response, done func(), err error) {
	w.mu.Lock()
	dial := w.dial
	if w.isolated[r.host] {
		dial = nil
	}
	w.mu.Unlock()
	if dial == nil {
		return nil, nil, syscall.ENETUNREACH
	}
	req, err := http.NewRequest(r.method, r.url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("fetch %s: %w", r.url, err)
	}
	ctx, cancel := context.WithCancel(req.Context())
	w.mu.Lock()
	spawned := w.spawn(func() {
		var late <-chan time.Time
		if r.patience > 0 {
			late = time.After(w.scaled(r.patience))
		}
		select {
		case <-late:
		case <-r.stop:
		case <-w.done:
		case <-ctx.Done():
		}
		cancel()
	})
	w.mu.Unlock()
	if !spawned {
		cancel()
		return nil, nil, ErrClosed
	}
	transport := &http.Transport{
		DialContext: dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: r.insecure},
	}
	res, err = (&http.Client{Transport: transport}).Do(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, nil, plain(err)
	}
	return res, cancel, nil
}

// plain returns err without net/http's prefix about the request.
func plain(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// reason returns the C library's message about a failed connection.
func reason(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "No route to host"
	case errors.Is(err, syscall.ENETUNREACH):
		return "Network is unreachable"
	case errors.Is(err, context.Canceled):
		return "Connection timed out"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "certificate verify failed"
	}
	return err.Error()
}
