package pveapi_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func itoa(n int) string { return strconv.Itoa(n) }

func inLab(t *testing.T, run func(*testing.T, *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newLab(t, talosRole()...)) })
}

// inEachLab runs each row of a table in a lab of its own, all at the same time.
func inEachLab[T any](t *testing.T, rows map[string]T, run func(*testing.T, *lab, T)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) { run(t, l, row) })
		})
	}
}

const vm = "/nodes/pve1/qemu/9011"

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
		want := map[string]any{"/pool/talos": map[string]any{"VM.Audit": 1.0}, "/vms/9012": map[string]any{"VM.Audit": 0.0}} // 0: does not propagate
		if diff := cmp.Diff(want, l.do("GET", "/access/permissions").Data); diff != "" {
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
