package config

// What builds images.
const (
	BuilderAuto    = "auto"
	BuilderFactory = "factory"
	BuilderImager  = "imager"
)

// BuilderOf is what builds the images of a schematic: BuilderFactory or BuilderImager.
func (im Images) BuilderOf(s Schematic) string {
	if im.Builder == BuilderImager || im.Builder == BuilderAuto && len(s.Extensions) > 0 {
		return BuilderImager
	}
	return BuilderFactory
}
