package main

import (
	"context"
	"os"
	"time"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/factory"
	"github.com/recast-sh/recast/internal/talos"
)

// available asks the Image Factory of a recast.yaml for the newest release of Talos, and Talos' table for
// the next Kubernetes. What can't be found out is "": it is only for people to know.
func available(ctx context.Context, file, talosVersion, kubernetesVersion string) (newTalos, newKubernetes string) {
	newKubernetes = talos.NextKubernetes(talosVersion, kubernetesVersion)
	c, err := config.Load(file, config.Options{Getenv: os.Getenv})
	if err != nil {
		return "", newKubernetes
	}
	f, err := factory.New(factory.Options{URL: c.Images.Factory, CAFile: c.Images.CAFile})
	if err != nil {
		return "", newKubernetes
	}
	defer f.Close()
	const soon = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	versions, err := f.Versions(ctx)
	if err != nil {
		return "", newKubernetes
	}
	return talos.NewestRelease(versions), newKubernetes
}
