package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

const nodeUUID = "5ec0ffee-0000-4000-8000-00000000900b"

var nodeAddr = netip.MustParseAddr("127.42.7.11")

// fakeNode is a control plane that answers as configured.
type fakeNode struct {
	machineapi.UnimplementedMachineServiceServer
	version  string
	members  []*machineapi.EtcdMember
	status   *machineapi.EtcdMemberStatus
	alarms   []*machineapi.EtcdMemberAlarm
	snapshot func(grpc.ServerStreamingServer[common.Data]) error
	pull     func(grpc.ServerStreamingServer[machineapi.ImageServicePullResponse]) error
	install  func(grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse]) error
	services []*machineapi.ServiceInfo
	hangs    string       // the method that never answers
	busy     func() error // the answer to a configuration; nil: as to any other change
	answer   error        // to calls that change something, after the change

	mu  sync.Mutex
	did []string // what has changed it
}

// start serves the node until the test's bubble ends, and returns a client for it.
func (n *fakeNode) start(t *testing.T) *Client {
	t.Helper()
	c, err := talosapi.NewCluster("lab", "https://127.42.7.10:6443", "v1.13.9", "v1.35.4")
	if err != nil {
		t.Fatal(err)
	}
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	system.TypedSpec().UUID = strings.ToUpper(nodeUUID)
	if err := st.Create(t.Context(), system); err != nil {
		t.Fatal(err)
	}
	nw := network.Memory()
	t.Cleanup(serveAPI(t, nw, c, nodeAddr.String(), func(s *grpc.Server) {
		machineapi.RegisterMachineServiceServer(s, n)
		machineapi.RegisterLifecycleServiceServer(s, &fakeLifecycle{node: n})
		machineapi.RegisterImageServiceServer(s, &fakeImages{node: n})
		cosi.RegisterStateServer(s, cosiserver.NewState(st))
	}))
	talosconfig, err := c.Talosconfig(role.Admin, nodeAddr.String())
	if err != nil {
		t.Fatal(err)
	}
	client, err := New(Options{Talosconfig: talosconfig, Dial: nw.Dialer().DialContext})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (n *fakeNode) note(ctx context.Context, method, what string) error {
	n.mu.Lock()
	n.did = append(n.did, strings.TrimSpace(method+" "+what))
	n.mu.Unlock()
	if n.hangs == method {
		<-ctx.Done()
		return ctx.Err()
	}
	return n.answer
}

// done returns what has changed the node so far.
func (n *fakeNode) done() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.did)
}

func (n *fakeNode) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{Version: &machineapi.VersionInfo{Tag: n.version}}}}, nil
}

func (n *fakeNode) EtcdMemberList(ctx context.Context, req *machineapi.EtcdMemberListRequest) (*machineapi.EtcdMemberListResponse, error) {
	if n.hangs == "EtcdMemberList" || !req.GetQueryLocal() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{Members: n.members}}}, nil
}

func (n *fakeNode) EtcdStatus(context.Context, *emptypb.Empty) (*machineapi.EtcdStatusResponse, error) {
	return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: n.status}}}, nil
}

func (n *fakeNode) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmListResponse, error) {
	if n.hangs == "EtcdAlarmList" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &machineapi.EtcdAlarmListResponse{Messages: []*machineapi.EtcdAlarm{{MemberAlarms: n.alarms}}}, nil
}

func (n *fakeNode) EtcdSnapshot(_ *machineapi.EtcdSnapshotRequest, s grpc.ServerStreamingServer[common.Data]) error {
	return n.snapshot(s)
}

func (n *fakeNode) EtcdForfeitLeadership(ctx context.Context, _ *machineapi.EtcdForfeitLeadershipRequest) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	return &machineapi.EtcdForfeitLeadershipResponse{Messages: []*machineapi.EtcdForfeitLeadership{{}}}, n.note(ctx, "forfeit", "")
}

func (n *fakeNode) EtcdLeaveCluster(ctx context.Context, _ *machineapi.EtcdLeaveClusterRequest) (*machineapi.EtcdLeaveClusterResponse, error) {
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{}}}, n.note(ctx, "leave", "")
}

func (n *fakeNode) Bootstrap(ctx context.Context, req *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	what := fmt.Sprint(req.GetRecoverEtcd(), " ", req.GetRecoverSkipHashCheck())
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, n.note(ctx, "bootstrap", what)
}

func (n *fakeNode) EtcdRecover(s grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]) error {
	size := 0
	for {
		piece, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		size += len(piece.GetBytes())
	}
	if err := n.note(s.Context(), "recover", strconv.Itoa(size)); err != nil {
		return err
	}
	return s.SendAndClose(&machineapi.EtcdRecoverResponse{Messages: []*machineapi.EtcdRecover{{}}})
}

func (n *fakeNode) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{Services: n.services}}}, nil
}

func (n *fakeNode) Reboot(ctx context.Context, req *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{}}}, n.note(ctx, "reboot", req.GetMode().String())
}

func (n *fakeNode) Rollback(ctx context.Context, _ *machineapi.RollbackRequest) (*machineapi.RollbackResponse, error) {
	return &machineapi.RollbackResponse{Messages: []*machineapi.Rollback{{}}}, n.note(ctx, "rollback", "")
}

func (n *fakeNode) ApplyConfiguration(ctx context.Context, req *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	if n.busy != nil {
		_ = n.note(ctx, "apply", "")
		return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{}}}, n.busy()
	}
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{}}}, n.note(ctx, "apply", req.GetMode().String()+" "+string(req.GetData()))
}

func (n *fakeNode) Upgrade(ctx context.Context, req *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	if !req.GetPreserve() || req.GetForce() || req.GetStage() {
		return nil, context.Canceled // these flags do not belong here
	}
	return &machineapi.UpgradeResponse{Messages: []*machineapi.Upgrade{{Ack: "Upgrade request received"}}}, n.note(ctx, "old upgrade", req.GetImage())
}

// fakeLifecycle is the node's service for upgrades since 1.13.
type fakeLifecycle struct {
	machineapi.UnimplementedLifecycleServiceServer
	node *fakeNode
}

func (l *fakeLifecycle) Upgrade(
	req *machineapi.LifecycleServiceUpgradeRequest, s grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse],
) error {
	if err := l.node.note(s.Context(), "upgrade", where(req.GetContainerd())+req.GetSource().GetImageName()); err != nil {
		return err
	}
	return l.node.install(s)
}

// fakeImages is the node's service for images since 1.13.
type fakeImages struct {
	machineapi.UnimplementedImageServiceServer
	node *fakeNode
}

func (i *fakeImages) Pull(req *machineapi.ImageServicePullRequest, s grpc.ServerStreamingServer[machineapi.ImageServicePullResponse]) error {
	if err := i.node.note(s.Context(), "pull", where(req.GetContainerd())+req.GetImageRef()); i.node.hangs == "pull" {
		return err
	}
	if i.node.pull == nil { // it has the image
		return s.Send(&machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_Name{Name: req.GetImageRef()}})
	}
	return i.node.pull(s)
}

func where(c *common.ContainerdInstance) string {
	return c.GetDriver().String() + "/" + c.GetNamespace().String() + " "
}
