package kube

import (
	"context"
	"errors"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/linstor"
)

// The Service of LINSTOR's controller (piraeus-operator, pkg/resources/cluster/controller/controller-service.yaml).
const (
	linstorLabel = "app.kubernetes.io/component=linstor-controller"
	linstorPort  = "3370"
)

// linstorElse is for a LINSTOR that can't be read.
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

// linstorReplicas reads the volumes of the LINSTOR that Piraeus runs. While that can't be read, every node with a
// satellite may have some.
func (c VolumeReader) linstorReplicas(ctx context.Context) (replica.System, error) {
	s := replica.System{Name: linstor.Name}
	clusters, err := listCustom[linstorCluster](ctx, c.conn, piraeusVersion.WithResource("linstorclusters"), "")
	if err != nil || len(clusters) == 0 {
		return s, err
	}
	spec := clusters[0].Spec
	switch {
	case spec.External != nil:
		s.Away = foreign.Line("its controller is outside of the cluster (" + spec.External.URL + "), and recast reads only one inside")
		s.Return = linstorElse
	case spec.TLS != nil:
		// It redirects every request to a port that asks for a client certificate (initGrizzly in linstor-server,
		// GrizzlyHttpService.java), and the API server's proxy has none.
		s.Away, s.Return = "its API asks for a client certificate (spec.apiTLS of the LinstorCluster), and the API server's proxy has none", linstorElse
	default:
		controller, found, err := c.find(ctx, linstorLabel, linstorPort)
		if err != nil {
			return s, err
		}
		if !found {
			s.Away = "there is no Service with " + linstorLabel
			break
		}
		read, err := linstor.Read(ctx, controller.get)
		if !errors.Is(err, errSilent) {
			return read, err
		}
		s.Away = foreign.Line(err.Error())
	}
	satellites, err := listCustom[linstorSatellite](ctx, c.conn, piraeusVersion.WithResource("linstorsatellites"), "")
	for _, satellite := range satellites {
		s.Holders = append(s.Holders, satellite.Metadata.Name)
	}
	return s, err
}
