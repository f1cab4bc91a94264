package imager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/recast-sh/recast/internal/sim/artefact"
	sim "github.com/recast-sh/recast/internal/sim/imager"
)

// build does what the imager does. way is "build", or "build-" and the fault. Each
// run is counted in the file runs, beside the directory of all runs.
func build(way string, profile []byte, out string) error {
	kind := sim.ISO
	for _, k := range []string{sim.Installer, sim.Disk} {
		if strings.Contains(string(profile), "kind: "+k) {
			kind = k
		}
	}
	runs, err := os.OpenFile(filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(out))), "runs"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(runs, kind)
		err = errors.Join(err, runs.Close())
	}
	if err == nil && way == "build-other-base" && kind == sim.Installer {
		err = otherBase(filepath.Join(out, "in", "installer-base"))
	}
	if err == nil {
		err = sim.Build(profile, out, func(kind string, img *artefact.Image) { spoil(way, kind, img) })
	}
	if err == nil && way == "build-cut-iso" && kind == sim.ISO {
		err = os.Truncate(filepath.Join(out, "nocloud-amd64.iso"), 50_000)
	}
	if err == nil && way == "build-cut-disk" && kind == sim.Disk {
		err = os.Truncate(filepath.Join(out, "nocloud-amd64.qcow2"), 50_000)
	}
	return err
}

func spoil(way, kind string, img *artefact.Image) {
	switch {
	case way == "build-swapped":
		img.Extensions[1].Files["/usr/local/bin/frr"] = []byte("evil")
	case way == "build-other-version":
		img.TalosVersion = "v1.13.8"
	case way == "build-other-iso" && kind == sim.ISO, way == "build-other-disk" && kind == sim.Disk:
		img.Extensions = img.Extensions[1:]
	}
}

// otherBase replaces the base image of the build.
func otherBase(dir string) error {
	img, err := random.Image(512, 1)
	if err != nil {
		return err
	}
	if img, err = withArch(img, "amd64"); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendImage(img, layout.WithPlatform(*linux("amd64").Platform))
}
