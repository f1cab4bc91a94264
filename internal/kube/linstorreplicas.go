package kube

import (
	"context"
	"errors"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

// linstorController is LINSTOR's controller; away says why it can't be asked, and how that ends.
func (c *Client) linstorController(ctx context.Context) (controller linstor.Controller, away, ends string, err error) {
	clusters, err := listCustom[linstorCluster](ctx, c, piraeusVersion.WithResource("linstorclusters"), "")
	if err != nil {
		return controller, "", "", err
	}
	if len(clusters) == 0 {
		return controller, "", "", errNoCluster
	}
	switch spec := clusters[0].Spec; {
	case spec.External != nil:
		return controller, foreign.Line("its controller is outside of the cluster (" + spec.External.URL + "), and recast reads only one inside"), linstorElse, nil
	case spec.TLS != nil:
		// It redirects every request to a port that asks for a client certificate (initGrizzly in linstor-server,
		// GrizzlyHttpService.java), and the API server's proxy has none.
		return controller, "its API asks for a client certificate (spec.apiTLS of the LinstorCluster), and the API server's proxy has none", linstorElse, nil
	}
	at, found, err := c.findService(ctx, linstorLabel, linstorPort)
	if err == nil && !found {
		away = "there is no Service with " + linstorLabel
	}
	return linstor.Controller{Get: at.get, Put: at.put, Place: at.place()}, away, "", err
}

// errNoCluster says that Piraeus is installed without a LINSTOR.
var errNoCluster = errors.New("there is no LinstorCluster")

// linstorReplicas reads the volumes of the LINSTOR that Piraeus runs. While that can't be read, every node with a
// satellite may have some.
func (c *Client) linstorReplicas(ctx context.Context, _ schema.GroupVersion) (s replica.System, err error) {
	s = replica.System{Name: linstor.Name}
	controller, away, ends, err := c.linstorController(ctx)
	switch {
	case errors.Is(err, errNoCluster):
		return s, nil
	case err != nil:
		return s, err
	case away == "":
		read, err := controller.System(ctx)
		if !errors.Is(err, errSilent) {
			return read, err
		}
		away = foreign.Line(err.Error())
	}
	s.Away, s.Return = away, ends
	satellites, err := listCustom[linstorSatellite](ctx, c, piraeusVersion.WithResource("linstorsatellites"), "")
	for _, satellite := range satellites {
		s.Holders = append(s.Holders, satellite.Metadata.Name)
	}
	return s, err
}

// linstorHeld reads how long LINSTOR waits. Where it can't be asked, recast has changed nothing.
func (c *Client) linstorHeld(ctx context.Context) ([]replica.Setting, error) {
	controller, away, _, err := c.linstorController(ctx)
	if errors.Is(err, errNoCluster) || err == nil && away != "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return controller.Settings(ctx)
}

// linstorSettings reads how long LINSTOR waits, to change it.
func (c *Client) linstorSettings(ctx context.Context) ([]replica.Setting, error) {
	controller, away, _, err := c.linstorController(ctx)
	if err == nil && away != "" {
		err = errors.New(away)
	}
	if err != nil {
		return nil, err
	}
	return controller.Settings(ctx)
}

// linstorRight is what a change of a node's property needs.
func (c *Client) linstorRight(ctx context.Context) (*authorizationv1.ResourceAttributes, error) {
	at, found, err := c.findService(ctx, linstorLabel, linstorPort)
	if err != nil || !found {
		return nil, err
	}
	return &authorizationv1.ResourceAttributes{
		Resource: "services", Subresource: "proxy", Verb: "update", Name: at.service.Name + ":" + linstorPort, Namespace: at.service.Namespace,
	}, nil
}
