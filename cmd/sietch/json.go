package main

import (
	"reflect"
	"time"
)

// filled copies a value so that its JSON keeps the contract whatever the engine
// left out: arrays and objects are empty rather than null, times are UTC.
func filled(v any) any {
	if v == nil {
		return nil
	}
	return fill(reflect.ValueOf(v)).Interface()
}

var timeType = reflect.TypeFor[time.Time]()

func fill(v reflect.Value) reflect.Value {
	t := v.Type()
	out := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Struct:
		if t == timeType {
			return reflect.ValueOf(v.Interface().(time.Time).UTC())
		}
		for i := range t.NumField() {
			if t.Field(i).IsExported() {
				out.Field(i).Set(fill(v.Field(i)))
			}
		}
	case reflect.Slice:
		out = reflect.MakeSlice(t, v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(fill(v.Index(i)))
		}
	case reflect.Map:
		out = reflect.MakeMapWithSize(t, v.Len())
		for it := v.MapRange(); it.Next(); {
			out.SetMapIndex(it.Key(), fill(it.Value()))
		}
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		out.Set(reflect.New(t.Elem()))
		out.Elem().Set(fill(v.Elem()))
	case reflect.Interface:
		if v.IsNil() {
			return v
		}
		out.Set(fill(v.Elem()))
	default:
		return v
	}
	return out
}
