package pipeline

import (
	"path/filepath"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
)

// byImager says whether the imager builds a schematic, and not a factory.
func (p Project) byImager(schematic string) bool {
	return p.Config.Images.BuilderOf(p.Config.Schematics[schematic]) == config.BuilderImager
}

// imager is what the imager builds with. Its directory is below the project's:
// Docker Desktop and its like mount only what is in the user's home.
func (w workshop) imager() images.ImagerBuilder {
	return images.ImagerBuilder{
		Builds: w.byImager, Imager: w.images.Imager, Archives: w.images.Registry, Copier: w.images.Registry,
		Base: w.Config.Images.Extensions + "/installer-base", Scratch: filepath.Join(w.State(), "cache", "imager"),
	}
}
