package talos

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// oldNode is a machine whose Talos lacks most of the requested kinds.
type oldNode struct {
	machineapi.UnimplementedMachineServiceServer
	unreadable resource.Type // answers with an error
}

func (*oldNode) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{Version: &machineapi.VersionInfo{Tag: "v1.9.0"}}}}, nil
}

func (*oldNode) Read(req *machineapi.ReadRequest, s grpc.ServerStreamingServer[common.Data]) error {
	content, ok := map[string]string{bootIDFile: "boot-1\n", cmdlineFile: "quiet talos.config=https://user:pass@seed.example/?t=secret\n"}[req.GetPath()]
	if !ok {
		return status.Error(codes.Unknown, "no such file")
	}
	return s.Send(&common.Data{Bytes: []byte(content)})
}

func (n *oldNode) access(_ context.Context, a state.Access) error {
	switch a.ResourceType {
	case runtime.MachineStatusType, config.MachineConfigType:
		return nil
	case n.unreadable:
		return status.Error(codes.Internal, "disk on fire")
	}
	return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", a.ResourceType)
}

// serve answers at addr:50000 until the returned function is called.
func (n *oldNode) serve(t *testing.T, nw *network.Network, c *talosapi.Cluster, addr string) (stop func()) {
	t.Helper()
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	ready := runtime.NewMachineStatus()
	ready.TypedSpec().Stage, ready.TypedSpec().Status.Ready = runtime.MachineStageRunning, true
	if err := st.Create(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	return serveAPI(t, nw, c, addr, func(s *grpc.Server) {
		machineapi.RegisterMachineServiceServer(s, n)
		cosi.RegisterStateServer(s, cosiserver.NewState(state.Filter(st, n.access)))
	})
}

// serveAPI answers at addr:50000, with a certificate of the cluster, until the returned function is called.
func serveAPI(t *testing.T, nw *network.Network, c *talosapi.Cluster, addr string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(c.Secrets.Certs.OS)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := x509.NewKeyPair(ca, x509.IPAddresses([]net.IP{net.ParseIP(addr)}), x509.NotBefore(time.Now()), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}))
	if err != nil {
		t.Fatal(err)
	}
	l, err := nw.Listen(addr + ":50000")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair.Certificate}})))
	register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // ends with stop
	return func() { s.Stop(); <-done }
}

// A kind that the machine does not have is an empty field; one that it fails to read is an error.
func TestOldNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := talosapi.NewCluster("lab", "https://127.42.7.10:6443", "v1.13.9", "v1.35.4")
		if err != nil {
			t.Fatal(err)
		}
		nw := network.Memory()
		defer (&oldNode{}).serve(t, nw, c, "127.42.7.31")()
		defer (&oldNode{unreadable: block.DiskType}).serve(t, nw, c, "127.42.7.32")()
		talosconfig, err := c.Talosconfig(role.Admin, "127.42.7.31")
		if err != nil {
			t.Fatal(err)
		}
		client, err := New(Options{Talosconfig: talosconfig, Dial: nw.Dialer().DialContext})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		got, err := cluster.ReadMachine(t.Context(), client, netip.MustParseAddr("127.42.7.31"))
		if diff := cmp.Diff(cluster.Machine{
			MachineStanding: cluster.MachineStanding{Stage: "running", Ready: true},
			RunningSystem: cluster.RunningSystem{
				TalosVersion: "v1.9.0", ConfigArgs: []string{"talos.config=https://seed.example"},
				Cmdline: cluster.Secret("quiet talos.config=https://user:pass@seed.example/?t=secret"),
			},
			BootID: "boot-1",
		}, got); diff != "" || err != nil {
			t.Errorf("err = %v; machine (-want +got):\n%s", err, diff)
		}
		if _, err := client.MachineConfig(t.Context(), netip.MustParseAddr("127.42.7.31")); !errors.Is(err, errNoConfig) {
			t.Errorf("configuration: err = %v", err)
		}
		got, err = cluster.ReadMachine(t.Context(), client, netip.MustParseAddr("127.42.7.32"))
		if want := "127.42.7.32: list Disks.block.talos.dev: disk on fire"; err == nil || err.Error() != want || got.TalosVersion != "" {
			t.Errorf("err = %v, want %s; machine = %+v", err, want, got)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := talosapi.NewCluster("lab", "https://127.42.7.10:6443", "v1.13.9", "v1.35.4")
		if err != nil {
			t.Fatal(err)
		}
		good, err := c.Talosconfig(role.Admin, "127.42.7.31")
		if err != nil {
			t.Fatal(err)
		}
		none, err := c.Talosconfig(role.Admin)
		if err != nil {
			t.Fatal(err)
		}
		cases := map[string]struct {
			o    Options
			want string
		}{
			"fine":          {Options{Talosconfig: good}, ""},
			"no YAML":       {Options{Talosconfig: []byte("context: [secret-value")}, "not valid YAML"},
			"nothing":       {Options{}, "not valid YAML"},
			"other context": {Options{Talosconfig: good, Context: "prod"}, `no context "prod"`},
			"no endpoints":  {Options{Talosconfig: none}, "has no endpoints"},
			"broken key":    {Options{Talosconfig: []byte("context: a\ncontexts: {a: {endpoints: [b], crt: c2VjcmV0LXZhbHVl, key: eA==}}")}, "can't be read"},
		}
		check := func(name string, o Options, want string) {
			_, err := New(o)
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
				t.Errorf("%s: err = %v, want %q", name, err, want)
			}
		}
		for name, c := range cases {
			check(name, c.o, c.want)
		}
		early, err := New(Options{Talosconfig: good})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * 365 * 24 * time.Hour)
		check("expired", Options{Talosconfig: good}, "expired on 20")
		if _, err := cluster.ReadMachine(t.Context(), early, netip.MustParseAddr("127.42.7.31")); fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "expired on 20") {
			t.Errorf("expired since: %v", err)
		}
	})
}

// A session never moves to another connection.
func TestOnce(t *testing.T) {
	t.Parallel()
	dialed := 0
	dial := once(func(context.Context, string, string) (net.Conn, error) {
		dialed++
		if dialed == 1 {
			return nil, net.ErrClosed
		}
		client, _ := net.Pipe()
		return client, nil
	})
	if _, err := dial(t.Context(), "a"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("first: err = %v", err)
	}
	if _, err := dial(t.Context(), "a"); err != nil {
		t.Errorf("second: err = %v", err)
	}
	if _, err := dial(t.Context(), "a"); !errors.Is(err, errConnectionLost) || dialed != 2 {
		t.Errorf("third: err = %v after %d attempts", err, dialed)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	config := []byte("machine:\n  type: worker\n  token: abcdef.0123456789\n  pin: '12'\n  disks: disk\n  port: 6443\n  secret: swordfish\n  text: |\n    first line\n    second line\n---\napiVersion: v1alpha1\nkind: VolumeConfig\n")
	cases := map[string]struct{ text, want string }{
		"nothing of it":   {"line 4: mapping expected", "line 4: mapping expected"},
		"a value":         {"bad token abcdef.0123456789!", "bad token [redacted]!"},
		"a word of it":    {"a worker has no disk, port 6443", "a worker has no disk, port 6443"},
		"a secret word":   {"the secret swordfish is short", "the secret [redacted] is short"},
		"a longer word":   {"no workers", "no workers"},
		"part of a value": {"cannot unmarshal !!str `abcdef....` into int", "cannot unmarshal !!str [redacted] into int"},
		"one of lines":    {"unexpected second line here", "unexpected [redacted] here"},
		"what it is":      {"document v1alpha1/VolumeConfig/ (line 8)", "document v1alpha1/VolumeConfig/ (line 8)"},
		"unknown keys":    {"x: unknown keys found during decoding:\nmachine:\n    pin: 12\n    more:\n        - a: 7\n", "x: unknown keys: machine.pin, machine.more.a"},
		"a list":          {"2 errors occurred:\n\t* one\n\t* two\n\n", "one; two"},
	}
	for name, c := range cases {
		if got := withoutValues(c.text, config); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := withoutValues("yaml: line 2: found abc", []byte("a: [abc")); got != "not valid YAML, line 2" {
		t.Errorf("no YAML: %q", got)
	}
}
