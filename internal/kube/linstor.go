package kube

import (
	"cmp"
	"context"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
)

var piraeusVersion = schema.GroupVersion{Group: "piraeus.io", Version: "v1"}

// linstorSatellite is what we read of the Piraeus operator's LinstorSatellite, which
// is named as its node and has what every LinstorSatelliteConfiguration gives it
// (piraeus-operator, api/v1/linstorsatellite_types.go, storagepool.go).
type linstorSatellite struct {
	Spec struct {
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

// linstorPools lists the storage pools that LINSTOR has on the node. Nothing in
// Kubernetes says which volumes are in one.
func (c *Client) linstorPools(ctx context.Context, n *corev1.Node, groups []metav1.APIGroup) ([]cluster.LocalData, error) {
	if installed, err := understood(groups, piraeusVersion); !installed {
		return nil, err
	}
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name).String()
	satellites, err := listCustom[linstorSatellite](ctx, c, piraeusVersion.WithResource("linstorsatellites"), selector)
	if err != nil {
		return nil, err
	}
	var data []cluster.LocalData
	for _, s := range satellites {
		for _, p := range s.Spec.StoragePools {
			data = append(data, p.local())
		}
	}
	return data, nil
}

// local says where a pool is. What is not given has the defaults of PoolName and
// DirectoryOrDefault in storagepool.go.
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
