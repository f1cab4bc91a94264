package talos

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

func TestEtcdRecover(t *testing.T) {
	t.Parallel()
	early := status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	cases := map[string]struct {
		node *fakeNode
		file io.Reader
		want string // what is done
		is   error
		err  string
	}{
		"every byte":                {&fakeNode{}, strings.NewReader(strings.Repeat("x", 100_000)), "recover 100000", nil, ""},
		"in small pieces":           {&fakeNode{}, iotest.OneByteReader(strings.NewReader("snapshot")), "recover 8", nil, ""},
		"too early":                 {&fakeNode{answer: early}, strings.NewReader("x"), "recover 1", cluster.ErrNotYet, "not ready for recovery yet"},
		"a file that can't be read": {&fakeNode{}, iotest.ErrReader(errors.New("input/output error")), "", nil, "read the snapshot: input/output error"},
		"silence":                   {&fakeNode{hangs: "recover"}, strings.NewReader("x"), "recover 1", nil, "silent for too long"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				err := c.node.start(t).EtcdRecover(t.Context(), nodeAddr, nodeUUID, c.file)
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || !errors.Is(err, c.is) && c.is != nil {
					t.Errorf("err = %v, want %q", err, c.err)
				}
				if took := time.Since(start); took > snapshotSilence {
					t.Errorf("it took %s", took)
				}
				if done := strings.Join(c.node.done(), " "); done != c.want {
					t.Errorf("done: %q, want %q", done, c.want)
				}
			})
		})
	}
}

func TestEtcdBootstrapTellsWhyNot(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		answer error
		kind   fault.Kind
		is     error
	}{
		"it has data":        {status.Error(codes.AlreadyExists, "etcd data directory is not empty"), fault.Refused, nil},
		"too early":          {status.Error(codes.FailedPrecondition, "bootstrap is not available yet"), fault.Failed, cluster.ErrNotYet},
		"the answer is lost": {status.Error(codes.Unavailable, "error reading from server: EOF"), fault.Failed, cluster.ErrLostAnswer},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{answer: c.answer}
				err := n.start(t).EtcdBootstrap(t.Context(), nodeAddr, nodeUUID, cluster.EtcdCopy)
				if fault.KindOf(err) != c.kind || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), status.Convert(c.answer).Message()) {
					t.Errorf("err = %v", err)
				}
				if done := n.done(); !slices.Equal(done, []string{"bootstrap true true"}) {
					t.Errorf("done: %q", done)
				}
			})
		})
	}
}

func TestEtcdService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		event := func(text string) *machineapi.ServiceEvent { return &machineapi.ServiceEvent{Msg: text} }
		n := &fakeNode{services: []*machineapi.ServiceInfo{
			{Id: "cri", State: "Running"},
			{Id: "etcd", State: "Failed", Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{event("Running pre state"), event("it is too late")}}},
		}}
		c := n.start(t)
		if state, last, err := c.EtcdService(t.Context(), nodeAddr); err != nil || state != "Failed" || last != "it is too late" {
			t.Errorf("%q %q %v", state, last, err)
		}
		n.services = n.services[:1]
		if _, _, err := c.EtcdService(t.Context(), nodeAddr); err == nil {
			t.Error("no error without etcd")
		}
	})
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	c := &Client{endpoints: []string{"127.42.7.12", "localhost", "fd00::1", "127.42.7.11:50000", "[fd00::2]", "127.42.7.11:6443"}}
	got, err := c.Endpoints(t.Context())
	if err != nil || len(got) != 5 || got[0] != netip.MustParseAddr("127.42.7.12") || !got[1].IsLoopback() || got[2] != netip.MustParseAddr("fd00::1") || got[3] != netip.MustParseAddr("127.42.7.11") || got[4] != netip.MustParseAddr("fd00::2") {
		t.Errorf("%v, %v", got, err)
	}
	c.endpoints = c.endpoints[5:]
	if got, err := c.Endpoints(t.Context()); err == nil || !strings.Contains(err.Error(), "endpoint 127.42.7.11:6443 of the talosconfig: port 6443") {
		t.Errorf("%v, %v", got, err)
	}
}
