package talosapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	cosiclient "github.com/cosi-project/runtime/pkg/state/protobuf/client"
	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// healthPoll is how often Talos repeats a failed check, at speed 1.
const healthPoll = 5 * time.Second

// clusterService checks the health of all machines of the cluster.
type clusterService struct {
	clusterapi.UnimplementedClusterServiceServer
	machine *machineService
	proxy   *proxy
}

var _ clusterapi.ClusterServiceServer = (*clusterService)(nil)

// check is one condition of a healthy cluster (pkg/cluster/check).
type check struct {
	name   string
	assert func(ctx context.Context) error
}

// errSkip skips a check of something that the cluster does not have.
var errSkip = errors.New("SKIP")

// HealthCheck implements the API: it waits for one condition after the other and reports progress.
func (s *clusterService) HealthCheck(req *clusterapi.HealthCheckRequest, srv grpc.ServerStreamingServer[clusterapi.HealthCheckProgress]) error {
	if err := s.machine.checkControlPlane("cluster health check"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(srv.Context(), req.GetWaitTimeout().AsDuration())
	defer cancel()
	b := s.machine.boot
	nodes, _, _ := b.m.fw.hub.members(discoveryOf(b.config()))
	last := ""
	say := func(text string) {
		if text != last {
			_ = srv.Send(&clusterapi.HealthCheckProgress{Message: text}) // the caller may be gone
		}
		last = text
	}
	e := &examination{proxy: s.proxy, nodes: nodes}
	say(fmt.Sprintf("discovered nodes: %q", addresses(nodes)))
	for _, c := range append(e.machineChecks(), e.kubernetesChecks()...) {
		say("waiting for " + c.name + ": ...")
		err := c.assert(ctx)
		for err != nil && !errors.Is(err, errSkip) {
			say("waiting for " + c.name + ": " + err.Error())
			if !b.m.fw.sleep(ctx, healthPoll) {
				return ctx.Err()
			}
			err = c.assert(ctx)
		}
		result := "OK"
		if err != nil {
			result = err.Error()
		}
		say("waiting for " + c.name + ": " + result)
	}
	return nil
}

// examination is a health check of the machines that discovery knows.
type examination struct {
	proxy *proxy
	nodes []cluster.AffiliateSpec
}

func (e *examination) machineChecks() []check {
	return []check{
		{"etcd to be healthy", e.service("etcd")},
		{"etcd members to be consistent across nodes", e.consistent},
		{"etcd members to be control plane nodes", e.membersAreControlPlanes},
		{"apid to be ready", e.each(e.nodes, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := machineapi.NewMachineServiceClient(conn).Version(ctx, &emptypb.Empty{})
			return err
		})},
		{"all nodes memory sizes", e.each(e.nodes, memorySize)},
		{"all nodes disk sizes", e.each(e.nodes, judged(block.NamespaceName, block.VolumeStatusType, diskSizes))},
		{"no diagnostics", e.each(e.nodes, judged(runtime.NamespaceName, runtime.DiagnosticType, noDiagnostics))},
		{"kubelet to be healthy", e.service("kubelet")},
		{
			"all nodes to finish boot sequence",
			e.each(e.nodes, judged(runtime.NamespaceName, runtime.MachineStatusType, booted)),
		},
		{"all k8s nodes to report", e.proxy.boot.nodesReport(e.nodes)},
		{
			"all control plane static pods to be running",
			e.each(e.controlPlanes(), judged(k8s.NamespaceName, k8s.StaticPodStatusType, staticPods)),
		},
	}
}

func addresses(nodes []cluster.AffiliateSpec) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, address(n).String())
	}
	return all
}

func address(n cluster.AffiliateSpec) netip.Addr {
	if len(n.Addresses) == 0 {
		return netip.Addr{}
	}
	return n.Addresses[0]
}

func (e *examination) controlPlanes() []cluster.AffiliateSpec {
	return slices.DeleteFunc(slices.Clone(e.nodes), func(n cluster.AffiliateSpec) bool { return !n.MachineType.IsControlPlane() })
}

// each asks the machines one after the other, in the caller's name.
func (e *examination) each(nodes []cluster.AffiliateSpec, ask func(context.Context, *grpc.ClientConn) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, n := range nodes {
			out, conn, err := e.proxy.connect(ctx, address(n).String())
			if err == nil {
				err = ask(out, conn)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", address(n), err)
			}
		}
		return nil
	}
}

// service requires a service of the control planes to be healthy.
func (e *examination) service(id string) func(context.Context) error {
	return e.each(e.controlPlanes(), func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := machineapi.NewMachineServiceClient(conn).ServiceList(ctx, &emptypb.Empty{})
		if err != nil {
			return err
		}
		for _, s := range answer.GetMessages()[0].GetServices() {
			switch {
			case s.GetId() != id:
			case s.GetState() != stateRunning:
				return fmt.Errorf("service %q not in expected state %q: current state [%s]", id, stateRunning, s.GetState())
			case !s.GetHealth().GetHealthy():
				return fmt.Errorf("service is not healthy: %s", id)
			}
		}
		return nil
	})
}

func (e *examination) consistent(ctx context.Context) error {
	var first []string
	return e.each(e.controlPlanes(), func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := machineapi.NewMachineServiceClient(conn).EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
		if err != nil {
			return err
		}
		var names []string
		for _, m := range answer.GetMessages()[0].GetMembers() {
			names = append(names, m.GetHostname())
		}
		slices.Sort(names)
		if first == nil {
			first = names
		}
		if !slices.Equal(first, names) {
			return fmt.Errorf("expected to have %v members, got %v", first, names)
		}
		return nil
	})(ctx)
}

func (e *examination) membersAreControlPlanes(ctx context.Context) error {
	c, err := e.proxy.boot.reachEtcd(ctx)
	if err != nil {
		return err
	}
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	known := addresses(e.controlPlanes())
	for _, m := range members {
		if !slices.ContainsFunc(known, func(addr string) bool { return m.PeerURL == "https://"+addr+":2380" }) {
			return fmt.Errorf("etcd member %s (%s) is not one of the control plane node ips %q", m.Name, m.PeerURL, known)
		}
	}
	return nil
}

// Minimum resources of a machine (pkg/minimal, of a worker).
const (
	leastMemory    = 874 * mib
	leastEphemeral = 3 * gib
)

func memorySize(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := machineapi.NewMachineServiceClient(conn).Memory(ctx, &emptypb.Empty{})
	if err != nil {
		return err
	}
	if total := answer.GetMessages()[0].GetMeminfo().GetMemtotal() * 1024; total < leastMemory {
		return fmt.Errorf("node does not meet memory requirements: expected at least %d MiB, actual %d MiB", leastMemory/mib, total/mib)
	}
	return nil
}

// judged judges all resources of a kind on another machine.
func judged[T resource.Resource](
	ns resource.Namespace, kind resource.Type, judge func([]T) error,
) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, conn *grpc.ClientConn) error {
		st := state.WrapCore(cosiclient.NewAdapter(cosi.NewStateClient(conn)))
		list, err := safe.StateList[T](ctx, st, resource.NewMetadata(ns, kind, "", resource.VersionUndefined))
		if err != nil {
			return err
		}
		return judge(slices.AppendSeq([]T(nil), list.All()))
	}
}

func diskSizes(volumes []*block.VolumeStatus) error {
	for _, v := range volumes {
		if v.Metadata().ID() == labelEphemeral && v.TypedSpec().Size < leastEphemeral {
			return fmt.Errorf("ephemeral partition %q is too small, actual %d", v.TypedSpec().Location, v.TypedSpec().Size)
		}
	}
	return nil
}

func noDiagnostics(all []*runtime.Diagnostic) error {
	if len(all) > 0 {
		return fmt.Errorf("active diagnostics: %s", all[0].Metadata().ID())
	}
	return nil
}

func booted(all []*runtime.MachineStatus) error {
	if len(all) > 0 && all[0].TypedSpec().Stage != runtime.MachineStageRunning {
		return fmt.Errorf("nodes are not running: %s", all[0].TypedSpec().Stage)
	}
	return nil
}

func staticPods(all []*k8s.StaticPodStatus) error {
	if want := 3; len(all) != want {
		return fmt.Errorf("missing static pods: %d of %d run", len(all), want)
	}
	return nil
}

// kubeObjects is the part of a list of Kubernetes' nodes or pods that the checks read.
type kubeObjects struct {
	Items []struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Unschedulable bool `json:"unschedulable"`
		} `json:"spec"`
		Status struct {
			Conditions []struct{ Type, Status string }  `json:"conditions"`
			Addresses  []struct{ Type, Address string } `json:"addresses"`
		} `json:"status"`
	} `json:"items"`
}

// unready returns the names of the objects that are not Ready.
func (o kubeObjects) unready() []string {
	var names []string
	for _, i := range o.Items {
		for _, c := range i.Status.Conditions {
			if c.Type == "Ready" && c.Status != "True" {
				names = append(names, i.Metadata.Name)
			}
		}
	}
	return names
}

// kubernetes requests a list from the cluster's API server, as an administrator.
func (b *boot) kubernetes(ctx context.Context, path string) (list kubeObjects, err error) {
	cfg := b.config()
	organization := cfg.Cluster().AdminKubeconfig().CertOrganization()
	options := clientOptions("talos:health", organization, allowedTimeSkew, time.Hour)
	pair, roots, err := issue(cfg.K8sAPIServerCAConfig().IssuingCA(), options...)
	if err != nil {
		return list, fmt.Errorf("error generating Kubernetes client certificate: %w", err)
	}
	transport := &http.Transport{
		DialContext: b.m.fw.o.Network.Dialer().DialContext, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*pair.Certificate}, RootCAs: roots},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.K8sClusterConfig().ClusterEndpoint().String()+path, nil)
	if err != nil {
		return list, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return list, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return list, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return list, json.NewDecoder(resp.Body).Decode(&list)
}

// nodesReport requires that Kubernetes' nodes are exactly the machines.
func (b *boot) nodesReport(nodes []cluster.AffiliateSpec) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := b.kubernetes(ctx, "/api/v1/nodes")
		if err != nil {
			return err
		}
		var there []string
		for _, i := range list.Items {
			for _, a := range i.Status.Addresses {
				if a.Type == "InternalIP" {
					there = append(there, a.Address)
				}
			}
		}
		for _, addr := range addresses(nodes) {
			if !slices.Contains(there, addr) {
				return fmt.Errorf("can't find expected node with IPs [%q]", addr)
			}
		}
		for _, addr := range there {
			if !slices.Contains(addresses(nodes), addr) {
				return fmt.Errorf("unexpected nodes with IPs [%q]", addr)
			}
		}
		return nil
	}
}

func (e *examination) kubernetesChecks() []check {
	b := e.proxy.boot
	return []check{
		{"all control plane components to be ready", func(ctx context.Context) error {
			for _, app := range []string{"kube-apiserver", "kube-scheduler", "kube-controller-manager"} {
				if err := b.podsReady(ctx, app, len(e.controlPlanes())); err != nil {
					return err
				}
			}
			return nil
		}},
		{"all k8s nodes to report ready", func(ctx context.Context) error {
			list, err := b.kubernetes(ctx, "/api/v1/nodes")
			if names := list.unready(); err == nil && len(names) > 0 {
				err = fmt.Errorf("some nodes are not ready: %v", names)
			}
			return err
		}},
		{"kube-proxy to report ready", b.workloadReady("daemonsets", "kube-proxy")},
		{"coredns to report ready", b.workloadReady("deployments", "kube-dns")},
		{"all k8s nodes to report schedulable", func(ctx context.Context) error {
			list, err := b.kubernetes(ctx, "/api/v1/nodes")
			for _, i := range list.Items {
				if i.Spec.Unschedulable {
					return fmt.Errorf("some nodes are not schedulable: [%s]", i.Metadata.Name)
				}
			}
			return err
		}},
	}
}

// podsReady requires n ready pods of an application in kube-system; -1 is any number.
func (b *boot) podsReady(ctx context.Context, app string, n int) error {
	list, err := b.kubernetes(ctx, "/api/v1/namespaces/kube-system/pods?labelSelector="+url.QueryEscape("k8s-app="+app))
	if err != nil {
		return err
	}
	if n >= 0 && len(list.Items) != n {
		return fmt.Errorf("expected number of pods for %s to be %d, got %d", app, n, len(list.Items))
	}
	if names := list.unready(); len(names) > 0 {
		return fmt.Errorf("some pods are not ready for %s: %v", app, names)
	}
	return nil
}

// workloadReady requires the pods of a workload in kube-system to be ready, if it exists.
func (b *boot) workloadReady(kind, app string) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := b.kubernetes(ctx, "/apis/apps/v1/namespaces/kube-system/"+kind+"?labelSelector="+url.QueryEscape("k8s-app="+app))
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return errSkip
		}
		return b.podsReady(ctx, app, -1)
	}
}
