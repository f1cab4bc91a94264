package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/linstor"
)

var piraeusVersion = schema.GroupVersion{Group: "piraeus.io", Version: "v1"}

// linstorSatellite is the part that we read of the Piraeus operator's LinstorSatellite. It has the name of its node
// and the merged LinstorSatelliteConfigurations (piraeus-operator, api/v1/linstorsatellite_types.go, storagepool.go).
type linstorSatellite struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		StoragePools []linstorPool `json:"storagePools"`
	} `json:"spec"`
}

type linstorPool struct {
	Name     string       `json:"name"`
	LVM      *linstorKind `json:"lvmPool"`
	LVMThin  *linstorKind `json:"lvmThinPool"`
	File     *linstorKind `json:"filePool"`
	FileThin *linstorKind `json:"fileThinPool"`
	ZFS      *linstorKind `json:"zfsPool"`
	ZFSThin  *linstorKind `json:"zfsThinPool"`
}

type linstorKind struct {
	VolumeGroup string `json:"volumeGroup"`
	ThinPool    string `json:"thinPool"`
	ZPool       string `json:"zPool"`
	Directory   string `json:"directory"`
}

// linstorPools finds LINSTOR's storage pools on each node. Kubernetes does not record which volumes are in which pool.
func (l *localScan) linstorPools(ctx context.Context, groups []metav1.APIGroup) error {
	if installed, err := supports(groups, piraeusVersion); !installed {
		return err
	}
	satellites, err := listCustom[linstorSatellite](ctx, l.Client, piraeusVersion.WithResource("linstorsatellites"), l.singleNode())
	if err != nil {
		return err
	}
	for _, s := range satellites {
		n := l.byName(s.Metadata.Name)
		if n == nil {
			continue
		}
		for _, p := range s.Spec.StoragePools {
			n.pools = append(n.pools, p.local())
		}
	}
	return nil
}

// local says where a pool is. Missing fields have the defaults of PoolName and DirectoryOrDefault in storagepool.go.
func (p linstorPool) local() cluster.LocalData {
	data := cluster.LocalData{Name: "linstor/" + p.Name}
	switch {
	case p.LVM != nil:
		data.Format, data.Group = cluster.FormatLVM, cmp.Or(p.LVM.VolumeGroup, p.Name)
	case p.LVMThin != nil:
		data.Format, data.Group = cluster.FormatLVM, cmp.Or(p.LVMThin.VolumeGroup, "linstor_"+cmp.Or(p.LVMThin.ThinPool, p.Name))
	case p.ZFS != nil:
		data.Format, data.Group = cluster.FormatZFS, cmp.Or(p.ZFS.ZPool, p.Name)
	case p.ZFSThin != nil:
		data.Format, data.Group = cluster.FormatZFS, cmp.Or(p.ZFSThin.ZPool, p.Name)
	case p.File != nil || p.FileThin != nil:
		dir := path.Clean("/" + cmp.Or(cmp.Or(p.File, p.FileThin).Directory, "/var/lib/linstor-pools/"+p.Name))
		data.Name, data.Path = "linstor"+dir, dir
	}
	data.What = fmt.Sprintf("LINSTOR storage pool %s (%s)", p.Name, cmp.Or(data.Path, data.Group, "of a kind that recast does not know"))
	return data
}

// The Service of LINSTOR's controller (piraeus-operator, pkg/resources/cluster/controller/controller-service.yaml).
const (
	linstorLabel = "app.kubernetes.io/component=linstor-controller"
	linstorPort  = "3370"
)

// linstorElse is the alternative for a LINSTOR that can't be read.
var linstorElse = replica.Off(linstor.Name) + " with a gate that asks linstor, see examples/gates/piraeus.yaml"

// linstorCluster is the part that we read of the Piraeus operator's LinstorCluster (api/v1/linstorcluster_types.go).
type linstorCluster struct {
	Spec struct {
		External *struct {
			URL string `json:"url"`
		} `json:"externalController"`
		TLS *struct{} `json:"apiTLS"`
	} `json:"spec"`
}

// noController says why there is no controller of LINSTOR that can be asked, and how that ends.
type noController struct{ why, ends string }

func (e noController) Error() string { return e.why }

// errNoCluster says that Piraeus is installed without a LINSTOR.
var errNoCluster = noController{why: "there is no LinstorCluster"}

// linstorController returns LINSTOR's controller; if there is none that can be asked, the error is a noController.
func (c *Client) linstorController(ctx context.Context) (controller linstor.Controller, err error) {
	clusters, err := listCustom[linstorCluster](ctx, c, piraeusVersion.WithResource("linstorclusters"), "")
	if err != nil {
		return controller, err
	}
	if len(clusters) == 0 {
		return controller, errNoCluster
	}
	switch spec := clusters[0].Spec; {
	case spec.External != nil:
		return controller, noController{foreign.Line("its controller is outside of the cluster (" + spec.External.URL + "), and recast reads only one inside"), linstorElse}
	case spec.TLS != nil:
		// The controller redirects every request to a port that asks for a client certificate (initGrizzly in
		// linstor-server, GrizzlyHttpService.java), and the API server's proxy has none.
		return controller, noController{"its API asks for a client certificate (spec.apiTLS of the LinstorCluster), and the API server's proxy has none", linstorElse}
	}
	at, found, err := c.findService(ctx, linstorLabel, linstorPort)
	if err == nil && !found {
		err = noController{why: "there is no Service with " + linstorLabel}
	}
	return linstor.Controller{Get: at.get, Put: at.put, Place: at.place()}, err
}

// linstorReplicas reads the volumes of the LINSTOR that Piraeus runs. While LINSTOR can't be read, every node with a
// satellite may have volumes.
func (c *Client) linstorReplicas(ctx context.Context, _ schema.GroupVersion) (s replica.System, err error) {
	s = replica.System{Name: linstor.Name}
	controller, err := c.linstorController(ctx)
	none, away := errors.AsType[noController](err)
	switch {
	case none == errNoCluster:
		return s, nil
	case err != nil && !away:
		return s, err
	case !away:
		read, err := controller.System(ctx)
		if !errors.Is(err, errSilent) {
			return read, err
		}
		none.why = foreign.Line(err.Error())
	}
	s.Away, s.Return = none.why, none.ends
	satellites, err := listCustom[linstorSatellite](ctx, c, piraeusVersion.WithResource("linstorsatellites"), "")
	s.Holders = cluster.Each(satellites, func(s linstorSatellite) string { return s.Metadata.Name })
	return s, err
}

// linstorHeld reads how long LINSTOR waits. It lists nothing if there is no controller to ask: then recast has
// changed nothing.
func (c *Client) linstorHeld(ctx context.Context) ([]replica.Setting, error) {
	settings, err := c.linstorSettings(ctx)
	if _, away := errors.AsType[noController](err); away {
		return nil, nil
	}
	return settings, err
}

// linstorSettings reads how long LINSTOR waits, to change it.
func (c *Client) linstorSettings(ctx context.Context) ([]replica.Setting, error) {
	controller, err := c.linstorController(ctx)
	if err != nil {
		return nil, err
	}
	return controller.Settings(ctx)
}

// linstorRight returns the right that a change of a node's property needs.
func (c *Client) linstorRight(ctx context.Context) (*authorizationv1.ResourceAttributes, error) {
	at, found, err := c.findService(ctx, linstorLabel, linstorPort)
	if err != nil || !found {
		return nil, err
	}
	return &authorizationv1.ResourceAttributes{
		Resource: "services", Subresource: "proxy", Verb: "update", Name: at.service.Name + ":" + linstorPort, Namespace: at.service.Namespace,
	}, nil
}
