package talosapi_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
)

func TestBootstrapFromASnapshot(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *quorum) {
		ctx := t.Context()
		saved, err := snapshot(ctx, q.client(address(1), role.EtcdBackup))
		if err != nil {
			t.Fatal(err)
		}
		old := q.id("cp1")
		q.kill("cp1")
		q.wipe("cp1")
		q.start(1, "cp1", "cp1")
		time.Sleep(time.Minute)
		c := q.admin(1)
		_, err = q.client(address(1), role.Operator).EtcdRecover(ctx, bytes.NewReader(saved))
		requireError(t, "as an operator", err, codes.PermissionDenied, "not authorized")

		recover := &machineapi.BootstrapRequest{RecoverEtcd: true}
		flipped := bytes.Clone(saved)
		flipped[len(flipped)-1] ^= 1
		for _, bad := range []struct {
			name string
			file []byte
			text string
		}{
			{"nothing was uploaded", nil, "Failed ?: Failed to run pre stage: error verifying snapshot: stat /var/lib/etcd.snapshot: no such file or directory"},
			{"a wrong checksum", flipped, "Failed ?: Failed to run pre stage: error recovering from the snapshot: expected sha256 "},
			{"no checksum", saved[:len(saved)-32], "Failed ?: Failed to run pre stage: error recovering from the snapshot: snapshot missing hash but --skip-hash-check=false"},
		} {
			if bad.file != nil {
				if _, err := c.EtcdRecover(ctx, bytes.NewReader(bad.file)); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Bootstrap(ctx, recover); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if got := q.service(1); !strings.HasPrefix(got, bad.text) {
				t.Errorf("%s: service %s, want %s", bad.name, got, bad.text)
			}
			want(t, bad.name, q.machine(1), "booting ready=false services: etcd not running")
		}
		if _, err := c.EtcdRecover(ctx, bytes.NewReader(saved)); err != nil {
			t.Fatal(err)
		}
		if err := c.Bootstrap(ctx, recover); err != nil {
			t.Fatal(err)
		}
		q.running(address(1))
		want(t, "members", q.members(), "cp1")
		if q.id("cp1") == old {
			t.Error("the member has its old ID")
		}
		requireError(t, "again", c.Bootstrap(ctx, recover), codes.AlreadyExists, "etcd data directory is not empty")
	})
}

// TestTypeInit: a control plane of machine.type init without data begins an etcd of its own, beside the one
// that runs, and takes no snapshot; with data it is like any other.
func TestTypeInit(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		q.as["cp1"] = "init"
		again := func() {
			q.kill("cp1")
			q.start(1, "cp1", "cp1")
			q.running(address(1))
		}
		again()
		want(t, "with its data", q.members(), "cp1 cp2 cp3")
		want(t, "second etcds", strings.Join(q.fw.BootstrapViolations(), "; "), "")
		q.wipe("cp1")
		again()
		want(t, "without", q.members(), "cp1")
		want(t, "second etcds", strings.Join(q.fw.BootstrapViolations(), "; "), "Talos cluster "+q.cluster.Secrets.Cluster.ID+": cp1 formed etcd number 2 of that cluster")
		requireError(t, "a bootstrap", q.admin(1).Bootstrap(t.Context(), &machineapi.BootstrapRequest{RecoverEtcd: true}), codes.AlreadyExists, "not empty")
	})
}
