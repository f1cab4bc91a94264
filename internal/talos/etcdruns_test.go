package talos

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/recast-sh/recast/internal/fault"
)

// TestEtcdThatDoesNotRun: calls about it would hang until their deadline; the list
// of services answers at once.
func TestEtcdThatDoesNotRun(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"Preparing", "Finished", "Failed", "Waiting"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{hangs: "EtcdMemberList", services: []*machineapi.ServiceInfo{{Id: "etcd", State: state}}}
				c, start := n.start(t), time.Now()
				_, errMembers := c.EtcdMembers(t.Context(), nodeAddr)
				_, errStatus := c.EtcdStatus(t.Context(), nodeAddr)
				if err := c.EtcdForfeit(t.Context(), nodeAddr, nodeUUID); err != nil {
					t.Errorf("it has nothing to hand over: %v", err)
				}
				if did := n.done(); len(did) > 0 {
					t.Errorf("it was asked for %q", did)
				}
				errSnapshot := c.EtcdSnapshot(t.Context(), nodeAddr, 0, io.Discard)
				if took := time.Since(start); took > time.Second {
					t.Errorf("it took %s", took)
				}
				for _, err := range []error{errMembers, errStatus, errSnapshot} {
					hints := strings.Join(fault.Hints(err), "\n")
					if err == nil || !strings.Contains(err.Error(), "etcd does not run on it: the service is "+state) || !strings.Contains(hints, "service etcd") || strings.Contains(hints, "restarted") {
						t.Errorf("err = %v; hints: %s", err, hints)
					}
				}
			})
		})
	}
}

// TestEtcdThatHangs: if only etcd is silent, the hint is about etcd.
func TestEtcdThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{hangs: "EtcdMemberList", services: []*machineapi.ServiceInfo{{Id: "etcd", State: "Running"}}}
		_, err := n.start(t).EtcdMembers(t.Context(), nodeAddr)
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, "its etcd does not") || strings.Contains(hints, "restarted") {
			t.Errorf("err = %v; hints: %s", err, hints)
		}
	})
}
