from dgpu.core_form import put_compiled_first

put_compiled_first(__path__, __name__)
