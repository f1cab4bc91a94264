package config

// Values of images.builder.
const (
	BuilderAuto    = "auto"
	BuilderFactory = "factory"
	BuilderImager  = "imager"
)

// Values of images.boot.
const (
	BootISO  = "iso"
	BootDisk = "disk"
	BootAuto = "auto"
)

// BuilderOf returns the builder of a schematic's images: BuilderFactory or BuilderImager.
func (im Images) BuilderOf(s Schematic) string {
	if im.Builder == BuilderImager || im.Builder == BuilderAuto && len(s.Extensions) > 0 {
		return BuilderImager
	}
	return BuilderFactory
}
