package pipeline

import (
	"path/filepath"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
)

// ByImager says whether the imager, not a factory, builds a schematic.
func (p Project) ByImager(schematic string) bool {
	return p.Config.Images.BuilderOf(p.Config.Schematics[schematic]) == config.BuilderImager
}

// imager configures builds with the imager. Its directory is below the project's: Docker
// Desktop and similar tools mount only directories in the user's home.
func (w workshop) imager() images.ImagerBuilder {
	return images.ImagerBuilder{
		Builds: w.ByImager, Imager: w.images.Imager, Archives: w.images.Registry, Copier: w.images.Registry,
		Base: w.Config.Images.Extensions + "/installer-base", Scratch: filepath.Join(w.State(), "cache", "imager"),
	}
}
