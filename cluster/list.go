package cluster

import "slices"

// Each applies of to each value and returns the results; nil if there are no values.
func Each[T, R any](values []T, of func(T) R) (out []R) {
	for _, v := range values {
		out = append(out, of(v))
	}
	return out
}

// Where returns the values for which is returns true; nil if there are none.
func Where[T any](values []T, is func(T) bool) (out []T) {
	for _, v := range values {
		if is(v) {
			out = append(out, v)
		}
	}
	return out
}

// TrueFirst orders true before false.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Find returns the first value for which is returns true; ok is false if there is none.
func Find[T any](values []T, is func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(values, is); i >= 0 {
		return values[i], true
	}
	return found, false
}
