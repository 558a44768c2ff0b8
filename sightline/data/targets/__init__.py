"""Targets of dense tasks: masks and boxes of objects, classes of pixels"""
