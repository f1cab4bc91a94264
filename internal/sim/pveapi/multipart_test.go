package pveapi_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	proxmox "github.com/luthermonson/go-proxmox"
)

// TestUploadParser: how file_upload_multipart of AnyEvent.pm handles unusual bodies.
func TestUploadParser(t *testing.T) {
	t.Parallel()
	const (
		content = "--B\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n"
		header  = "--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"a.iso\"\r\n"
		end     = "\r\n--B--\r\n"
	)
	type row struct {
		body   string
		want   string // status line, or exit status of the task
		stored string
	}
	tests := map[string]row{
		"bare newlines":              {strings.ReplaceAll(content+header+"Content-Type: x/y\r\n\r\nbytes"+end, "\r", ""), "OK", "bytes"},
		"text before":                {"hello\r\n" + content + header + "Content-Type: x/y\r\n\r\nbytes" + end, "OK", "bytes"},
		"something after":            {content + header + "Content-Type: x/y\r\n\r\nbytes" + end + "more", "OK", "bytes"},
		"spaces around a value":      {strings.Replace(content, "iso", " iso ", 1) + header + "Content-Type: x/y\r\n\r\nbytes" + end, "OK", "bytes"},
		"a boundary's beginning":     {content + header + "Content-Type: x/y\r\n\r\n\r\n--A\r\n--" + end, "OK", "\r\n--A\r\n--"},
		"no header after the name":   {content + header + "\r\nbytes\n\nrest" + end, "OK", "rest"}, // skipping ends at the next empty line
		"another header first":       {content + "--B\r\nContent-Type: x/y\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"a.iso\"\r\n\r\nbytes" + end, "500 upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.", ""},
		"another field for the file": {content + strings.Replace(header, `name="filename"`, `name="file"`, 1) + "Content-Type: x/y\r\n\r\nbytes" + end, "500 wrong field name 'file' for file upload, expected 'filename' at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1325.", ""},
		"another disposition":        {strings.Replace(content, "form-data", "attachment", 1) + header + "\r\nbytes" + end, "500 wrong Content-Disposition 'attachment' in multipart, expected 'form-data'", ""},
		"no end":                     {content + header + "Content-Type: x/y\r\n\r\nbytes", "500 upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.", ""},
		"another boundary":           {strings.ReplaceAll(content+header+"\r\nbytes"+end, "--B", "--C"), "500 upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.", ""},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		end := l.outcome(l.as(tokenID, "POST", upload, "multipart/form-data; boundary=B", []byte(test.body)))
		if end != test.want {
			t.Errorf("%s, want %s", end, test.want)
		}
		stored := ""
		if m := l.world.Media("isos:iso/a.iso", "pve1"); m != nil {
			stored = string(m.Bytes())
		}
		if stored != test.stored {
			t.Errorf("stored %q, want %q", stored, test.stored)
		}
	})
}

// TestUploadOtherwise: a body that is not multipart gets no answer, nor does a tmpfilename parameter.
func TestUploadOtherwise(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ query, contentType, body string }{
		"no form":     {"", "", "content=iso"},
		"tmpfilename": {"?tmpfilename=/etc/shadow", "multipart/form-data; boundary=B", string(multipart("content=iso", "filename=x"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				l.noAnswer(upload+test.query, test.contentType, strings.NewReader(test.body), int64(len(test.body)))
			})
		})
	}
}

const upload = "/nodes/pve1/storage/isos/upload"

// noAnswer sends a POST that must get no answer.
func (l *lab) noAnswer(path, contentType string, body io.Reader, size int64) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodPost, base+path, body)
	must(l.t, err)
	req.ContentLength = size
	req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
	req.Header.Set("Content-Type", contentType)
	if res, err := l.client.Do(req); err == nil {
		_ = res.Body.Close()
		l.t.Errorf("an answer: %s", res.Status)
	}
}

// TestUploadWithoutRights: a large file that is refused ends the connection without an answer.
func TestUploadWithoutRights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.noAnswer(upload, "multipart/form-data; boundary=B", io.LimitReader(zeros{}, 1<<20), 1<<20)
	})
}

// zeros is an endless file of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestLargeUpload: it is stored in a file, not in memory.
func TestLargeUpload(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		const size = 192 << 20
		head := "--B\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n" +
			"--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"large.iso\"\r\nContent-Type: x/y\r\n\r\n"
		tail := "\r\n--B--\r\n"
		req, err := http.NewRequestWithContext(t.Context(), "POST", base+"/nodes/pve1/storage/isos/upload",
			io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size), strings.NewReader(tail)))
		must(t, err)
		req.ContentLength = int64(len(head) + size + len(tail))
		req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
		req.Header.Set("Content-Type", "multipart/form-data; boundary=B")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		res, err := l.client.Do(req)
		must(t, err)
		_ = res.Body.Close()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > size/4 {
			t.Errorf("%d MiB are held", held>>20)
		}
		tasks := l.world.Tasks()
		if task, _ := l.world.WaitTask(tasks[0].UPID); task.ExitStatus != "OK" {
			t.Errorf("%+v", task)
		}
		if m := l.world.Media("isos:iso/large.iso", "pve1"); m == nil || m.Size() != size {
			t.Errorf("%v", m)
		}
	})
}

// TestGoProxmoxWithPassword: go-proxmox logs in, changes a VM and uploads.
func TestGoProxmoxWithPassword(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		ctx := t.Context()
		l.world.SetPassword("recast@pve", "correct-horse")
		client := proxmox.NewClient(base, proxmox.WithHTTPClient(l.client), proxmox.WithCredentials(&proxmox.Credentials{Username: "recast@pve", Password: "correct-horse"}))
		node, err := client.Node(ctx, "pve1")
		must(t, err)
		wait := waits(t)
		vm, err := node.VirtualMachine(ctx, 9011)
		must(t, err)
		wait(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "onboot", Value: true}))
		storage, err := node.Storage(ctx, "isos")
		must(t, err)
		name := filepath.Join(t.TempDir(), "theirs.iso")
		must(t, os.WriteFile(name, []byte("their bytes"), 0o600))
		wait(storage.Upload("iso", name))
		if m := l.world.Media("isos:iso/theirs.iso", "pve1"); m == nil || string(m.Bytes()) != "their bytes" {
			t.Errorf("stored %v", m)
		}
		refused := proxmox.NewClient(base, proxmox.WithHTTPClient(l.client), proxmox.WithCredentials(&proxmox.Credentials{Username: "recast@pve", Password: "wrong"}))
		if _, err := refused.Version(ctx); !errors.Is(err, proxmox.ErrNotAuthorized) {
			t.Errorf("a wrong password: %v", err)
		}
	})
}
