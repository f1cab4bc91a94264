package pveapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	mismatch = "500 checksum mismatch (file change by other user?)"
	bad      = "400 Parameter verification failed."
)

// TestRefusals covers refusals that package contract does not check on a real server.
func TestRefusals(t *testing.T) {
	t.Parallel()
	type row struct {
		method, path, want string
		errors             map[string]string
	}
	tests := map[string]row{
		"create, no vmid":  {method: "POST", path: "/nodes/pve1/qemu", want: bad, errors: map[string]string{"vmid": "property is missing and it is not optional"}},
		"switched failure": {method: "GET", path: vm + "/config", want: "500 boom"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.FailNext("GET /nodes/pve1/qemu", "boom")
		_, message, _ := strings.Cut(test.want, " ")
		want := reply{Status: test.want, Message: message + "\n", Errors: test.errors}
		if diff := cmp.Diff(want, l.do(test.method, test.path)); diff != "" {
			t.Error(diff)
		}
	})
}
