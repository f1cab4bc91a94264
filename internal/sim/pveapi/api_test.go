package pveapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func itoa(n int) string { return strconv.Itoa(n) }

func inLab(t *testing.T, run func(*testing.T, *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newLab(t, talosRole()...)) })
}

const vm = "/nodes/pve1/qemu/9011"

func TestUnauthorizedIsLateAndEmpty(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		for token, want := range map[string]string{"": "401 No ticket", "recast@pve!other": "401 no such token 'other' for user 'recast@pve'", "other@pve!lab": "401 no such user ('other@pve')"} {
			began := time.Now()
			got := l.as(token, "GET", "/version", "", nil)
			if diff := cmp.Diff(reply{Status: want}, got); diff != "" {
				t.Error(diff)
			}
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("took %v", took)
			}
		}
	})
}

func TestTokenWithoutRightsSeesEmptyLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		for _, path := range []string{"/nodes/pve1/qemu", "/cluster/resources?type=vm", "/pools", "/access/acl", "/nodes/pve1/storage"} {
			if diff := cmp.Diff(reply{Status: "200 OK", Data: []any{}}, l.do("GET", path)); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		if diff := cmp.Diff(reply{Status: "200 OK", Data: map[string]any{}}, l.do("GET", "/access/permissions")); diff != "" {
			t.Error(diff)
		}
		got := l.do("PUT", vm+"/config", "memory=1")
		want := "403 Permission check failed (/vms/9011, VM.Config.Disk|VM.Config.CDROM|VM.Config.CPU|VM.Config.Memory|" +
			"VM.Config.Network|VM.Config.HWType|VM.Config.Options|VM.Config.Cloudinit)"
		if got.Status != want {
			t.Errorf("status %q, want %q", got.Status, want)
		}
	})
}

func TestPermissionsOfPoolAndPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.world.AddRole("Look", "VM.Audit")
		l.world.Grant(world.ACL{Path: "/pool/talos", Who: tokenID, Role: "Look", Propagate: true})
		must(t, l.world.DefineVM("pve1", 9012, map[string]string{"pool": "talos"}, nil))
		if got := l.do("GET", "/nodes/pve1/qemu/9012/config").Status; got != "200 OK" {
			t.Errorf("VM in the pool: %s", got)
		}
		if got := l.do("GET", vm+"/config").Status; got != "403 Permission check failed (/vms/9011, VM.Audit)" {
			t.Errorf("VM outside: %s", got)
		}
		want := map[string]any{"/pool/talos": map[string]any{"VM.Audit": 1.0}, "/vms/9012": map[string]any{"VM.Audit": 0.0}} // that does not propagate
		if diff := cmp.Diff(want, l.do("GET", "/access/permissions").Data); diff != "" {
			t.Error(diff)
		}
	})
}

func TestConfigTypes(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		want := map[string]any{
			"name": "wk1", "memory": "2048", "cores": 2.0, "agent": "1", "onboot": 1.0, "scsihw": "virtio-scsi-single",
			"smbios1": "uuid=AAAAAAAA-0000-4000-8000-000000009011", "net0": "virtio=BC:24:11:00:90:11,bridge=vmbr0",
			"efidisk0": "fast:9011/vm-9011-disk-0.raw,efitype=4m,size=528K", "scsi0": "fast:9011/vm-9011-disk-1.raw,serial=sys,size=10G",
			"scsi1": "fast:9011/vm-9011-disk-2.raw,discard=on,iothread=1,serial=data-wk1,size=5G,ssd=1",
			"ide2":  "isos:iso/boot.iso,media=cdrom,size=3", "boot": "order=scsi0;ide2",
		}
		if diff := cmp.Diff(want, l.config(9011)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestJSONBody(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		got := l.as(tokenID, "PUT", vm+"/config", "application/json", []byte(`{"onboot":false,"cores":4,"memory":"1024","tags":"talos;roll"}`))
		if diff := cmp.Diff(reply{Status: "200 OK"}, got); diff != "" {
			t.Fatal(diff)
		}
		c := l.config(9011)
		if diff := cmp.Diff([]any{0.0, 4.0, "1024", "roll;talos"}, []any{c["onboot"], c["cores"], c["memory"], c["tags"]}); diff != "" {
			t.Error(diff)
		}
	})
}

func multipart(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		name, value, _ := strings.Cut(p, "=")
		fmt.Fprintf(&b, "--B\r\nContent-Disposition: form-data; name=%q", name)
		if name == "filename" {
			fmt.Fprintf(&b, "; filename=%q\r\nContent-Type: application/octet-stream\r\n\r\n%s\r\n", "../new one.iso", value)
			continue
		}
		fmt.Fprintf(&b, "\r\n\r\n%s\r\n", value)
	}
	b.WriteString("--B--\r\n")
	return b.Bytes()
}

func TestUpload(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("bytes"))
	good := "checksum=" + hex.EncodeToString(sum[:])
	tests := map[string]struct {
		storage string
		parts   []string
		want    string // status line, or the task's end
		errors  map[string]string
		stored  string
	}{
		"with checksum":        {parts: []string{"content=iso", "checksum-algorithm=sha256", good, "filename=bytes"}, want: "OK", stored: "bytes"},
		"without":              {parts: []string{"content=iso", "filename=bytes"}, want: "OK", stored: "bytes"},
		"wrong checksum":       {parts: []string{"content=iso", "checksum-algorithm=sha256", "checksum=00", "filename=bytes"}, want: "checksum mismatch: got '" + hex.EncodeToString(sum[:]) + "' != expect '00'"},
		"checksum before algo": {parts: []string{"content=iso", good, "checksum-algorithm=sha256", "filename=bytes"}, want: "400 Bad Request"},
		"unknown part":         {parts: []string{"content=iso", "x=1", "filename=bytes"}, want: "400 Bad Request"},
		"file first":           {parts: []string{"filename=bytes", "content=iso"}, want: "400 Parameter verification failed.", errors: map[string]string{"content": "property is missing and it is not optional"}},
		"not for ISOs":         {storage: "fast", parts: []string{"content=iso", "filename=bytes"}, want: "500 storage 'fast' does not support 'iso' content"},
		"block storage":        {storage: "thin", parts: []string{"content=iso", "filename=bytes"}, want: "500 can't upload to storage type 'lvmthin'"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				storage := test.storage
				if storage == "" {
					storage = "isos"
				}
				got := l.as(tokenID, "POST", "/nodes/pve1/storage/"+storage+"/upload", "multipart/form-data; boundary=B", multipart(test.parts...))
				end := got.Status
				if upid, ok := got.Data.(string); ok {
					task, _ := l.world.WaitTask(upid)
					end = task.ExitStatus
				}
				if diff := cmp.Diff(test.want, end); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(test.errors, got.Errors); diff != "" {
					t.Error(diff)
				}
				stored := ""
				if m := l.world.Media("isos:iso/new_one.iso", "pve2"); m != nil {
					stored = string(m.Bytes())
				}
				if stored != test.stored {
					t.Errorf("stored %q, want %q", stored, test.stored)
				}
			})
		})
	}
}

func TestChunkedIsRefused(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", base+"/nodes/pve1/storage/isos/upload", struct{ *strings.Reader }{strings.NewReader("x")})
		must(t, err)
		req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
		res, err := l.client.Do(req)
		must(t, err)
		_ = res.Body.Close()
		if res.Status != "501 chunked transfer encoding not supported" {
			t.Error(res.Status)
		}
	})
}
