package bootimage

import (
	"io"

	"go.yaml.in/yaml/v4"
)

// ReadOverlayOptions reads /overlay/extra-options of an installer, which is YAML:
// the options that the overlay's program gets in addition to the machine's disk.
func ReadOverlayOptions(r io.Reader) (map[string]any, error) {
	const part = "overlay options"
	src := &source{r: r}
	b, err := readAll(src, maxConfigBytes)
	var options map[string]any
	if err == nil {
		err = yaml.Unmarshal(b, &options)
	}
	if err != nil {
		return nil, refuse(part, src.or(err))
	}
	return options, nil
}
