package talosapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/manifests"
)

// bootstrap is the parameters of a bootstrap.
type bootstrap struct {
	recover, skipHash bool
}

// Bootstrap implements the API. It returns as soon as the service has the request.
func (s *machineService) Bootstrap(ctx context.Context, req *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	cfg := s.boot.config()
	install, err := s.boot.store.st.Get(ctx, runtime.NewUnattendedInstallStatus().Metadata())
	if err != nil && !state.IsNotFoundError(err) {
		return nil, err
	}
	unattended, _ := install.(*runtime.UnattendedInstallStatus)
	if cfg == nil || unattended != nil && unattended.TypedSpec().Phase != runtime.UnattendedInstallPhaseInstalled {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	switch {
	case s.boot.release().lifecycle:
		if err := s.checkControlPlane("bootstrap"); err != nil {
			return nil, err
		}
	case !cfg.Machine().Type().IsControlPlane():
		return nil, status.Error(codes.FailedPrecondition, "bootstrap can only be performed on a control plane node")
	}
	e := s.boot.etcdService()
	if e == nil {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	if s.boot.m.etcdData() != nil {
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	e.request(bootstrap{recover: req.GetRecoverEtcd(), skipHash: req.GetRecoverSkipHashCheck()})
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, nil
}

// EtcdRecover implements the API: it uploads a snapshot to EPHEMERAL, from which the next
// bootstrap may recover.
func (s *machineService) EtcdRecover(srv grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]) error {
	m := s.boot.m
	if _, mounted := locate(m.devices(), labelEphemeral); !mounted {
		return status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	}
	if err := s.checkControlPlane("etcd recover"); err != nil {
		return err
	}
	var b bytes.Buffer
	for {
		piece, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		b.Write(piece.GetBytes())
	}
	m.fw.hub.mu.Lock()
	m.fw.hub.recovery[m.hw.VMID] = b.Bytes()
	m.fw.hub.mu.Unlock()
	return srv.SendAndClose(&machineapi.EtcdRecoverResponse{Messages: []*machineapi.EtcdRecover{{}}})
}

// request makes the service form a new cluster as soon as it can.
func (e *etcdService) request(how bootstrap) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bootstrap = &how
	close(e.wake)
	e.wake = make(chan struct{})
}

func (e *etcdService) ordered() *bootstrap {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bootstrap
}

// form finds or makes the cluster that this machine will be a member of.
func (e *etcdService) form(ctx context.Context, how *bootstrap) (*etcd.Cluster, EtcdData, error) {
	switch {
	case e.b.begins():
		return e.found(ctx, nil)
	case how == nil:
		return e.join(ctx)
	case how.recover:
		data, err := e.uploaded(how.skipHash)
		if err != nil {
			return nil, EtcdData{}, err
		}
		c, d, err := e.found(ctx, data)
		if err == nil {
			e.removeUpload()
		}
		return c, d, err
	}
	return e.found(ctx, nil)
}

// begins says whether etcd begins alone when its directory is empty: on a control plane of type init, unless
// the system was just upgraded. A bootstrap request changes nothing there, nor does an uploaded snapshot
// (argsForInit in services/etcd.go).
func (b *boot) begins() bool {
	d, installed := systemDisk(b.m.devices())
	return b.config().Machine().Type() == machineconf.TypeInit && !(installed && readMeta(d).Upgrade != "")
}

// found makes a new etcd with this member alone and with data; nil is that of a new cluster.
// The lab has one Kubernetes: it stays with the etcd that runs, if there is one.
func (e *etcdService) found(ctx context.Context, data []etcd.KeyValue) (*etcd.Cluster, EtcdData, error) {
	fw, id := e.b.m.fw, clusterID(e.b.config())
	if fw.o.Data != nil && fw.hub.takeKubernetes(id) {
		if err := e.fill(ctx, data); err != nil {
			return nil, EtcdData{}, err
		}
	}
	fw.hub.noteBootstrap(id, e.b.hostname(), data == nil)
	c := fw.newEtcd(id, EtcdPeer{Name: e.b.hostname(), Addr: e.b.m.addr()})
	return c, dataOf(c, c.List()[0]), nil
}

// fill makes data, or the objects of a new cluster, the content of the lab's Kubernetes.
func (e *etcdService) fill(ctx context.Context, data []etcd.KeyValue) error {
	if data != nil {
		return e.b.m.fw.o.Data.Load(ctx, data)
	}
	planted, err := manifests.Render(manifestsOf(e.b.config()))
	if err != nil {
		return err
	}
	return e.b.m.fw.o.Data.Renew(ctx, manifests.Objects(planted, !e.b.release().bareMaintenance))
}

// takeKubernetes makes the lab's Kubernetes that of a cluster, unless an etcd of its present
// one runs.
func (h *hub) takeKubernetes(clusterID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.etcds[h.kubernetesOf], (*etcd.Cluster).Runs) {
		return false
	}
	h.served = h.served && h.kubernetesOf == clusterID
	h.kubernetesOf = clusterID
	return true
}

// noteBootstrap records a second etcd of a Talos cluster: the members of one etcd don't know
// those of the other. To restore a snapshot after the loss of the first is no violation.
func (h *hub) noteBootstrap(clusterID, node string, fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	earlier := h.etcds[clusterID]
	if len(earlier) > 0 && fresh || slices.ContainsFunc(earlier, (*etcd.Cluster).Runs) {
		h.bootstrapped = append(h.bootstrapped, fmt.Sprintf("Talos cluster %s: %s formed etcd number %d of that cluster", clusterID, node, len(earlier)+1))
	}
}

// uploaded reads the latest uploaded snapshot.
func (e *etcdService) uploaded(skipHash bool) ([]etcd.KeyValue, error) {
	h := e.b.m.fw.hub
	h.mu.Lock()
	b, there := h.recovery[e.b.m.hw.VMID]
	h.mu.Unlock()
	if !there {
		return nil, errors.New("error verifying snapshot: stat " + constants.EtcdRecoverySnapshotPath + ": no such file or directory")
	}
	return etcd.ReadSnapshot(b, skipHash)
}

func (e *etcdService) removeUpload() {
	h := e.b.m.fw.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.recovery, e.b.m.hw.VMID)
}

// fail ends the service until the next bootstrap request, as Talos does after a failure
// before the server's start.
func (e *etcdService) fail(ctx context.Context, how *bootstrap, err error) {
	e.show(ctx, service{state: stateFailed, message: "Failed to run pre stage: " + err.Error(), unknown: true})
	e.mu.Lock()
	wake := e.wake
	again := e.bootstrap != how
	e.mu.Unlock()
	if again {
		return
	}
	select {
	case <-ctx.Done():
	case <-wake:
	}
}

// snapshot is the cluster's database with its clients' data.
func (fw *Firmware) snapshot(ctx context.Context, c *etcd.Cluster) ([]byte, error) {
	var data []etcd.KeyValue
	if fw.o.Data != nil {
		var err error
		if data, err = fw.o.Data.Dump(ctx); err != nil {
			return nil, err
		}
	}
	return c.Snapshot(data)
}
